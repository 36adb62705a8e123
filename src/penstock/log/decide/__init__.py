"""Every decision about a change to a stream, made on its pending half by one owner."""
