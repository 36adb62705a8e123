"""Answers of /v1/state and /v1/schema in the coding that a client likes, with tags to match."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import brotli
import httpx2
import pytest
import zstandard

from tests.helpers.app import Answer, Client, with_app
from tests.helpers.server import running_server
from tests.state.test_server_schema import JSON, declare, post
from tests.state.test_server_state import change

DOCUMENT: dict[str, Any] = {
    "types": {f"type-{number}": {"schema": {"type": "object"}} for number in range(100)}
}
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "br": brotli.decompress,
    "gzip": lambda data: zlib.decompress(data, 16 + zlib.MAX_WBITS),
    "deflate": zlib.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
}


async def filled(client: Client, entities: int = 200) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", DOCUMENT)
    await post(
        client, "s", *(change("user", f"{n:04}", {"name": "x" * 100}) for n in range(entities))
    )


@pytest.mark.parametrize("coding", sorted(DECODERS))
@pytest.mark.parametrize("entities", [200, 2000])  # encoded in place, and off the loop
def test_an_answer_comes_encoded_and_means_the_same(coding: str, entities: int) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await filled(client, entities)
        for target in ("/v1/state/s?limit=10000", "/v1/schema/s"):
            plain = await client.send("GET", target)
            assert "content-encoding" not in plain.headers
            packed = await client.send("GET", target, accept_encoding=coding)
            assert packed.headers["content-encoding"] == coding
            assert len(packed.body) < len(plain.body) / 4
            assert DECODERS[coding](packed.body) == plain.body
            for answer in (plain, packed):
                assert answer.headers["vary"] == "Accept-Encoding"
                assert answer.headers["content-type"] == JSON
            tag = plain.headers["etag"]
            assert packed.headers["etag"] == f"W/{tag}"
            for seen in (tag, f"W/{tag}", f'"other", W/{tag}', "*"):
                same = await client.send("GET", target, accept_encoding=coding, if_none_match=seen)
                assert (same.status, same.body) == (304, b"")
                assert (same.headers["etag"], same.headers["vary"]) == (tag, "Accept-Encoding")

    check(store="memory", tmp_path=None)


@with_app()
async def test_small_answers_and_answers_that_do_not_fit_in_memory_go_out_as_they_are(
    client: Client,
) -> None:
    await filled(client, entities=2000)
    one = "/v1/state/s?type=user&key=0001"
    assert "content-encoding" not in (await client.send("GET", one, accept_encoding="gzip")).headers
    compressor = client.app.compressor
    held = compressor._held_max
    assert compressor.reserve(held)
    full: Answer = await client.send("GET", "/v1/state/s?limit=10000", accept_encoding="gzip")
    assert "content-encoding" not in full.headers
    assert not full.headers["etag"].startswith("W/")
    compressor.release(held)
    await client.send("GET", "/v1/state/s?limit=10000", accept_encoding="gzip")
    assert compressor.held_bytes == 0


@pytest.mark.parametrize("asgi", [False, True])
def test_head_says_what_get_would_without_its_body(asgi: bool) -> None:
    with (
        running_server(memory=True, asgi=asgi) as server,
        httpx2.Client(base_url=server.url) as http,
    ):
        http.put("/v1/stream/s", headers={"Content-Type": JSON}).raise_for_status()
        http.put("/v1/schema/s", json=DOCUMENT).raise_for_status()
        http.post("/v1/stream/s", json=change("user", "1", 1)).raise_for_status()
        for target in ("/v1/state/s", "/v1/schema/s"):
            got, headed = http.get(target), http.head(target)
            assert (got.status_code, headed.status_code, headed.content) == (200, 200, b"")
            assert got.content
            for name in ("content-length", "etag", "vary", "content-type", "cache-control"):
                assert headed.headers[name] == got.headers[name]
        assert http.head("/v1/schema/none").status_code == 404
        assert http.delete("/v1/schema/s").status_code == 204
        assert http.head("/v1/schema/s").status_code == 404
