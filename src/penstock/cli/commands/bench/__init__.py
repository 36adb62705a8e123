"""`penstock bench`: measures a server over the network."""

from penstock.cli.commands.bench.command import command as command
