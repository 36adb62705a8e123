"""Benchmarks: Penstock next to the reference server and next to the machine's own limits."""
