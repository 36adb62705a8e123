"""`penstock state`."""

from penstock.cli.commands.state.command import command as command
