"""One module or package per command, each with a click command called `command`."""
