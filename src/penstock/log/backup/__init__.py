"""Backups of a data folder in a folder or an object store, and restores from them."""
