"""`python -m penstock.cli` is the `penstock` command."""

from __future__ import annotations

from penstock.cli import main

main(prog_name="penstock")
