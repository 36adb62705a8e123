"""`penstock completion`: scripts that let a shell complete commands, options and names."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    Commands, options, contexts and the streams of the server are then completed by TAB.

    \b
    Examples:
      eval "$(penstock completion bash)"                                   # in ~/.bashrc
      eval "$(penstock completion zsh)"                                    # in ~/.zshrc
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from penstock.cli import main

    found = get_completion_class(shell)
    assert found is not None
    scripted = found(main, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not `source()`: that runs bash to warn about old versions, which may not be installed here.
    click.echo(scripted.source_template % scripted.source_vars())
