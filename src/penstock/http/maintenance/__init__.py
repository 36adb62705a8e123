"""`/v1/backup` and `/v1/scrub`: what keeps the data of a server safe."""
