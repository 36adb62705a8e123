"""The ASGI transport: the protocol core in any ASGI application or server."""
