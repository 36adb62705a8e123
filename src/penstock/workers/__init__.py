"""Several processes that serve one data folder together: `penstock serve --workers N`."""
