"""The blocking clients of State URLs and Notify URLs, generated from `stp/client/aio`."""
