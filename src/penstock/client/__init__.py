"""The clients: one set of rules without I/O, and two thin shells that run them on `httpx2`.

Users import `Client`, `AsyncClient` and the rest from `penstock`.
"""
