"""The server's side of state: the index of declared streams, and compaction."""
