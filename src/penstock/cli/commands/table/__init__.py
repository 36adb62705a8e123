"""`penstock table`: creates, writes, reads and follows STP tables."""

from penstock.cli.commands.table.command import command as command
