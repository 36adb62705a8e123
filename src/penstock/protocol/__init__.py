"""The protocol's rules as pure functions: no I/O, no event loop, no knowledge of storage."""
