"""`penstock pipeline`."""

from penstock.cli.commands.pipeline.command import command as command
