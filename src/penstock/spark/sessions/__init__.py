"""Spark sessions: the Java and Python that they start with, and their configuration."""
