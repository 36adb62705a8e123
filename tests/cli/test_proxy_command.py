"""`penstock proxy`: what it says when it cannot start. That it works is shown by docs/proxy.md."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from penstock.cli import main


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--upstream https://api.example"),
        (["--upstream", "api.example"], "is not an absolute https URL"),
        (["--upstream", "https://api.example k=NO_SUCH_KEY"], "variable NO_SUCH_KEY"),
        (["--upstream", "https://api.example", "--proxy-upstreams", "x"], "'x' is not"),
    ],
)
def test_an_upstream_that_cannot_be_called_ends_it(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(main, ["proxy", "--memory", "--port", "0", *arguments])
    assert result.exit_code != 0
    assert reason in (result.output + str(result.exception))
