"""The `stp` source: rows of tables at State URLs."""
