"""The store on disk: journal, segments, catalog, checkpoints and recovery."""
