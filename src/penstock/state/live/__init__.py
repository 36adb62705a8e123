"""Live state: a local database fed by a stream, blocking and asyncio."""
