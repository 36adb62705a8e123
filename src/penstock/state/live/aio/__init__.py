"""The asyncio live state."""
