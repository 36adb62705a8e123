"""The access dialect: `/v1/tokens`, `/v1/link` and `/v1/session`."""
