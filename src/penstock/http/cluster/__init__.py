"""A node of a cluster as it serves: the shards that it owns, and the way to all others."""
