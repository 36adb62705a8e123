"""`penstock cluster`: looks at a cluster, shows one, and moves streams into one and out of it."""

from penstock.cli.commands.cluster.command import command as command
