"""The console: pages for people at `/` and below `/console`."""
