"""The native transport: asyncio on httptools, and the strictness that httptools lacks."""
