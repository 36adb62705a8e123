"""`penstock stp`: tables that a server follows, URLs it notifies, and checks of any STP server."""

from penstock.cli.commands.stp.command import command as command
