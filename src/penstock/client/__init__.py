"""The clients: one set of rules without I/O, and two thin shells that run them on `httpx2`.

`penstock.Client`, `penstock.AsyncClient` and their friends are imported from the package itself.
"""
