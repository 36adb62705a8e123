"""The blocking live state: a thread of its own, and transactions generated from `live/aio`."""
