"""The blocking clients, generated from `client/aio`, and the threaded producer."""
