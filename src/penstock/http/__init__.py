"""HTTP: the resources of the server and the two transports (native and ASGI) that carry them.

Nothing here touches files; everything stored goes through the engine of `penstock.log`.
"""
