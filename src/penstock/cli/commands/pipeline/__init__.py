"""`penstock pipeline`: runs and queries a Spark pipeline."""

from penstock.cli.commands.pipeline.command import command as command
