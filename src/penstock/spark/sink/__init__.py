"""The `durable_streams` sink: rows to messages under producer headers."""
