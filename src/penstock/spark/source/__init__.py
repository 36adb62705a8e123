"""The `durable_streams` source: offsets and plans on the driver, ranges to Arrow in tasks."""
