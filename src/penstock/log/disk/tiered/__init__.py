"""Tiered storage: segments that are no longer written to, in an object store."""
