"""Responses that stay open, and the channels that feed them."""
