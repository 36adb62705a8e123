"""An App as a whole: opened over a store and released, and what becomes of bugs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.errors import StreamNotFound
from penstock.http.app import open_app
from penstock.http.message import Request, Response
from penstock.http.problems import error_response
from penstock.http.traffic import Traffic


def test_an_app_that_cannot_be_built_frees_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidSetting):
            await open_app(Settings(data_dir=tmp_path, public_url="no url"))
        app = await open_app(Settings(data_dir=tmp_path))
        await app.stop()

    asyncio.run(main())


def _content(response: Response) -> dict[str, object]:
    assert isinstance(response.body, bytes)
    content: dict[str, object] = json.loads(response.body)
    return content


def test_a_bug_is_the_same_response_wherever_it_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traffic = Traffic()
    with caplog.at_level(logging.ERROR, "penstock.http"):
        counted = traffic.failed(ZeroDivisionError("secret"))
        named = error_response(ZeroDivisionError("secret"), Request("GET", b"/v1/stream/a"))
    assert _content(counted) == _content(named)
    assert "secret" not in str(_content(named))
    assert "its log says why" in str(_content(named)["detail"])
    assert traffic.errors == {"internal": 1}
    assert "GET b'/v1/stream/a'" in caplog.text
    # The records, not their text: a library that is loaded may have changed its format.
    causes = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert list(map(repr, causes)) == ["ZeroDivisionError('secret')"] * 2


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StreamNotFound("There is none."), 404, "stream-not-found"),
        (asyncio.CancelledError(), 503, "shutting-down"),
        (ValueError(), 500, "internal"),
    ],
)
def test_every_error_has_a_response(error: BaseException, status: int, code: str) -> None:
    response = error_response(error)
    assert response.status == status
    assert _content(response)["code"] == code
