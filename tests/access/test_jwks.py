"""Keys from a file and from another server: rotation, failures, and how often they are loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.access.jwks import AGE_MIN_S, KeyFile, Keys, KeyUrl
from penstock.access.jwt import JwtAccess
from penstock.access.key_set import KeyRules, KeySet
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.egress import Egress
from penstock.errors import KeysUnavailable, KeyUnknown, Unauthorized
from penstock.limits import JWT_KEYS_BYTES_MAX
from tests.access.minting import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    Signer,
    document,
    keys,
    name_of,
    signer,
    write_keys,
)
from tests.egress.scripted import Scripted, answer, scripted

OLD, NEW = signer(kid="old", name="old"), signer(kid="new", name="new")
RULES = KeyRules(("ES256",))


def runs(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on the event loop of the server."""

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(), 20))

    run.__name__ = getattr(test, "__name__", "test")
    return run


class Time:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _serve(server: Scripted, *signers: Signer, headers: tuple[str, ...] = ()) -> None:
    server._parts = [answer(document(*(each.jwk() for each in signers)), *headers)]


def _egress(**settings: Any) -> Egress:
    return Egress(Settings(memory=True, development=True, **settings))


def _keys(server: Scripted, time: Time | None = None, *, age_s: float = 600) -> Keys:
    source = KeyUrl(server.url("/jwks.json?token=hidden"), _egress())
    return Keys(source=source, rules=RULES, age_s=age_s, monotonic=time or Time())


def _settings(jwt_keys: str, **changes: Any) -> Settings:
    usual = {"jwt_algorithms": ("ES256",), "jwt_issuer": (ISSUER,), "jwt_audience": (AUDIENCE,)}
    return Settings(memory=True, development=True, jwt_keys=jwt_keys, **{**usual, **changes})


def _access(jwt_keys: str, **changes: Any) -> JwtAccess:
    settings = _settings(jwt_keys, **changes)
    return JwtAccess(settings, Egress(settings), clock=ManualClock(NOW_S * 1_000_000))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def _has(keys: Keys, issuer: Signer) -> bool:
    return keys.current.find(issuer.kid, "ES256") is not None


# -- a URL


@runs
async def test_a_new_key_is_picked_up_and_a_removed_one_ends() -> None:
    time = Time()
    async with scripted() as server:
        _serve(server, OLD)
        loaded = _keys(server, time)
        await loaded.refresh()
        assert (_has(loaded, OLD), _has(loaded, NEW)) == (True, False)
        for signers in ([OLD, NEW], [NEW]):
            time.now_s += 5
            _serve(server, *signers)
            await loaded.refresh()
            assert (_has(loaded, OLD), _has(loaded, NEW)) == (OLD in signers, True)
        assert b"accept: application/jwk-set+json" in server.requests[0]


@runs
async def test_nothing_is_fetched_before_the_start() -> None:
    async with scripted() as server:
        _serve(server, OLD)
        access = _access(server.url())
        await asyncio.sleep(0)
        assert server.requests == []
        access.start()
        await _until(lambda: _has(access.keys, OLD))
        assert len(server.requests) == 1
        assert name_of(access, OLD.token()) == "ada"
        access.close()


@runs
async def test_a_storm_of_unknown_keys_makes_one_fetch() -> None:
    gate = asyncio.Event()
    async with scripted() as server:
        _serve(server, OLD)
        access = _access(server.url())
        time = access.keys._monotonic = Time()
        await access.keys.refresh()
        time.now_s += 5
        server._parts = [gate, answer(document(OLD.jwk(), NEW.jwk()))]
        for index in range(1000):
            with pytest.raises(KeysUnavailable) as caught:
                access.principal(OLD.token({"kid": f"unknown-{index}"}))
            assert caught.value.headers == {"Retry-After": "1"}
            assert name_of(access, OLD.token()) == "ada"  # a known key does not wait
        waiting = asyncio.gather(*(access.keys.refresh() for _ in range(100)))
        gate.set()
        await waiting
        assert len(server.requests) == 2
        # The set is new: what is not in it is unknown, and what is in it is accepted.
        assert name_of(access, NEW.token()) == "ada"
        for index in range(1000):
            with pytest.raises(KeyUnknown):
                access.principal(OLD.token({"kid": f"unknown-{index}"}))
        await access.keys.refresh()
        assert len(server.requests) == 2
        time.now_s += 4.9
        await access.keys.refresh()
        assert len(server.requests) == 2
        time.now_s += 0.1
        await access.keys.refresh()
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    "parts",
    [
        [answer(b"", status=500)],
        [answer(b"", "Location: https://example.com/", status=302)],
        [answer(document(NEW.jwk()), status=203)],
        [answer(b"<html>")],
        [answer(b'{"keys": {}}')],
        [answer(b" " * (JWT_KEYS_BYTES_MAX + 1))],
        [answer(document(NEW.jwk()), "Content-Encoding: br")],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1000\r\n" + b" " * 4096 +
         b"\r\n"] * 65],
        [b"nonsense"],
        [],
    ],
)  # fmt: skip
def test_the_last_good_keys_stay_when_a_fetch_fails(
    parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    @runs
    async def run() -> None:
        async with scripted() as server:
            _serve(server, OLD)
            access = _access(server.url("/jwks.json?token=hidden"))
            time = access.keys._monotonic = Time()
            await access.keys.refresh()
            server._parts = parts
            for _ in range(3):
                time.now_s += 5
                await access.keys.refresh()
            assert (access.keys.loads, access.keys.failures) == (4, 3)
            assert name_of(access, OLD.token()) == "ada"
            # Nobody can say whether this key is one of the issuer's.
            with pytest.raises(KeysUnavailable) as caught:
                access.principal(NEW.token())
            assert caught.value.headers == {"Retry-After": "5"}
            time.now_s += 5
            _serve(server, NEW)
            await access.keys.refresh()
            assert name_of(access, NEW.token()) == "ada"
            with pytest.raises(KeyUnknown):
                access.principal(OLD.token())

    caplog.set_level(logging.INFO)
    run()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2  # one for three failures of the same kind, one for their end
    assert "the last ones stay" in lines[0]
    assert "loaded again" in lines[1]
    assert "hidden" not in "".join(lines)


@runs
async def test_a_server_starts_while_its_issuer_is_down() -> None:
    async with scripted() as server:
        _serve(server, OLD)
        url = server.url()
        await server.aclose()
        access = _access(url)
        time = access.keys._monotonic = Time()
        access.start()
        with pytest.raises(KeysUnavailable):
            access.principal(OLD.token())
        await _until(lambda: access.keys.failures == 1)
        with pytest.raises(KeysUnavailable):
            access.principal(OLD.token())
        # What no key could make valid is refused at once.
        with pytest.raises(Unauthorized, match="algorithm"):
            access.principal(OLD.token({"alg": "none"}))
        assert access.keys.loads == 1
        async with scripted() as again:
            _serve(again, OLD)
            access.keys._source = KeyUrl(again.url(), _egress())
            time.now_s += 5
            with pytest.raises(KeysUnavailable):
                access.principal(OLD.token())
            await access.keys.refresh()
            assert name_of(access, OLD.token()) == "ada"
        access.close()


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ((), 600),
        (("Cache-Control: public, max-age=120, must-revalidate",), 120),
        (('Cache-Control: MAX-AGE = "120"',), 120),
        (("Cache-Control: max-age=0",), AGE_MIN_S),
        (("Cache-Control: max-age=99999999999999999999",), 600),
        (("Cache-Control: no-store, max-age=120",), AGE_MIN_S),
        (("Cache-Control: no-cache",), AGE_MIN_S),
        (("Cache-Control: max-age=x",), 600),
    ],
)
def test_the_issuer_can_ask_for_earlier_fetches(header: tuple[str, ...], wait_s: float) -> None:
    @runs
    async def run() -> None:
        async with scripted() as server:
            _serve(server, OLD, headers=header)
            loaded = _keys(server)
            await loaded.refresh()
            assert loaded._wait_s == wait_s

    run()


@runs
async def test_keys_are_fetched_again_when_they_are_old() -> None:
    async with scripted() as server:
        _serve(server, OLD)
        loaded = _keys(server, age_s=0.01)
        loaded.start()
        await _until(lambda: _has(loaded, OLD))
        server._parts = [b"nonsense"]
        await _until(lambda: loaded.failures > 2)
        _serve(server, NEW)
        await _until(lambda: _has(loaded, NEW))
        assert not _has(loaded, OLD)
        loaded.close()
        # Closed, it fetches no more.
        await _until(lambda: loaded._task is not None and loaded._task.done())
        count = loaded.loads
        await asyncio.sleep(0.05)
        assert loaded.loads == count


@runs
async def test_the_same_keys_again_change_nothing() -> None:
    time = Time()
    async with scripted() as server:
        _serve(server, OLD)
        loaded = _keys(server, time)
        changes: list[KeySet] = []
        loaded.on_change = changes.append
        for _ in range(3):
            await loaded.refresh()
            time.now_s += 5
        assert changes == [loaded.current]


@runs
async def test_an_internal_address_is_never_asked_for_keys() -> None:
    async with scripted() as server:
        _serve(server, OLD)
        source = KeyUrl(server.url(), Egress(Settings(memory=True)))
        loaded = Keys(source=source, rules=RULES, age_s=600)
        await loaded.refresh()
        assert (loaded.failures, server.requests) == (1, [])


@runs
async def test_an_empty_set_ends_all_keys() -> None:
    time = Time()
    async with scripted() as server:
        _serve(server, OLD)
        loaded = _keys(server, time)
        await loaded.refresh()
        _serve(server)
        time.now_s += 5
        await loaded.refresh()
        assert (len(loaded.current), loaded.failures) == (0, 0)


def test_keys_that_are_ignored_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @runs
    async def run() -> None:
        time = Time()
        async with scripted() as server:
            encryption = [OLD.jwk(use="enc", kid=str(index)) for index in range(7)]
            server._parts = [answer(document(*encryption, NEW.jwk()))]
            loaded = _keys(server, time)
            for _ in range(3):
                await loaded.refresh()
                time.now_s += 5
            assert _has(loaded, NEW)

    run()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "/jwks.json: key 1 is not for signatures; " in line
    assert line.endswith("; and 2 more")
    assert "hidden" not in line


# -- a file


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    @runs
    async def run() -> None:
        path = write_keys(tmp_path / "jwks.json", OLD.jwk())
        access = _access(str(path))
        assert name_of(access, OLD.token()) == "ada"
        access.keys._age_s = 0.01
        access.start()
        await _until(lambda: access.keys.loads > 3)
        before = access.keys.current
        assert name_of(access, OLD.token()) == "ada"
        path.write_bytes(b'{"keys": [')  # half written
        await _until(lambda: access.keys.failures > 0)
        assert access.keys.current is before
        path.unlink()
        failures = access.keys.failures
        await _until(lambda: access.keys.failures > failures)
        assert name_of(access, OLD.token()) == "ada"
        write_keys(tmp_path / "next.json", NEW.jwk()).rename(path)
        await _until(lambda: _has(access.keys, NEW))
        assert name_of(access, NEW.token()) == "ada"
        with pytest.raises((KeyUnknown, KeysUnavailable)):
            access.principal(OLD.token())
        access.close()

    run()


def test_a_key_that_was_just_added_to_a_file_is_found_by_asking(tmp_path: Path) -> None:
    @runs
    async def run() -> None:
        path = write_keys(tmp_path / "jwks.json", OLD.jwk())
        access = _access(str(path))
        write_keys(path, OLD.jwk(), NEW.jwk())
        with pytest.raises(KeysUnavailable) as caught:
            access.principal(NEW.token())
        assert caught.value.headers == {"Retry-After": "1"}
        await access.keys.refresh()
        assert name_of(access, NEW.token()) == "ada"

    run()


def test_no_more_of_a_file_is_read_than_a_key_set_may_have(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert len(KeyFile(path).read().data) == JWT_KEYS_BYTES_MAX + 1


@runs
async def test_without_a_source_nothing_is_loaded() -> None:
    fixed = keys(OLD.jwk(), algorithms=("ES256",))
    fixed.start()
    await fixed.refresh()
    assert fixed.refresh_soon() is None
    assert fixed.loads == 0
    fixed.close()
