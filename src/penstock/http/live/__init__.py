"""Responses that stay open, and the channels that write to them."""
