"""`penstock doctor`: checks the machine, the data folder, the settings and the server."""

from penstock.cli.commands.doctor.command import command

__all__ = ["command"]
