"""`penstock demo`."""

from penstock.cli.commands.demo.command import command as command
