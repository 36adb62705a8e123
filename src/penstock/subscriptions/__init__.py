"""Subscriptions: durable cursors over streams that wake a worker, by webhook or by pull-wake.

Their state is a stream of the log; what they wake on is what the log has committed. Knows no HTTP
but through egress.
"""
