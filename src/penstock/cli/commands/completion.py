"""`penstock completion`: prints a script with which a shell completes commands and names."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    With it, TAB completes commands, options, contexts and the streams of the server.

    \b
    Examples:
      eval "$(penstock completion bash)"                                   # in ~/.bashrc
      eval "$(penstock completion zsh)"                                    # in ~/.zshrc
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from click.shell_completion import get_completion_class

    from penstock.cli import main

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    completion = completion_class(main, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not `source()`, which runs bash to check its version: bash may not be installed here.
    click.echo(completion.source_template % completion.source_vars())
