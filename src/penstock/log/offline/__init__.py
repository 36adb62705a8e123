"""Looking at the data folder of a stopped server: verify and inspect."""
