"""The decisions about changes to streams: one module for each kind of change.

Every decision is made on a stream's pending half by one owner, the event loop, and gets what it
needs as a `context.Context`. It knows neither HTTP nor files.
"""
