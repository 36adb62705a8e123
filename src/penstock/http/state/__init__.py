"""`/v1/schema` and `/v1/state`: declared state streams and their materialised state."""
