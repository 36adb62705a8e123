"""`/docs` and `/problems`: pages about the server's API and its errors, for people."""
