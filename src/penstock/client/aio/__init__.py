"""The asyncio clients. Their blocking twins in `client/sync` are generated from these modules."""
