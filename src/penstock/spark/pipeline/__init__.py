"""A pipeline run: micro-batches into the warehouse, and results published from it."""
