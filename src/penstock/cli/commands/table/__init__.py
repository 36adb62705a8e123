"""`penstock table`."""

from penstock.cli.commands.table.command import command as command
