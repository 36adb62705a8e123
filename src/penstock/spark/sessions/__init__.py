"""Spark sessions: Java and Python found, launched and configured."""
