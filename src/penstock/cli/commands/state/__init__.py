"""`penstock state`: shows the state of a stream of events."""

from penstock.cli.commands.state.command import command as command
