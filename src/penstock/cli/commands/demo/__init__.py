"""`penstock demo`: shows a server, a live reader and a pipeline."""

from penstock.cli.commands.demo.command import command as command
