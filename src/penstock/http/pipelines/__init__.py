"""`/v1/pipelines`: the pipelines whose warehouses this server reaches."""
