"""Requests that another process answers: who owns a path, and how a request gets there and back."""
