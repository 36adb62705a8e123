"""The store of a cluster: streams in PostgreSQL, owned by one node at a time."""
