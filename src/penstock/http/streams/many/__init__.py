"""`GET /v1/streams/live`: several streams on one SSE response."""
