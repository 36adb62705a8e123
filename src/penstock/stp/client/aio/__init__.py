"""The asyncio clients of State URLs and Notify URLs."""
