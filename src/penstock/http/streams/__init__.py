"""`/v1/stream`: streams as resources."""
