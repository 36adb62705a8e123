"""Named values kept with a stream, and the checks that hang on them."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest, StreamNotFound
from penstock.log.records import MetaRecord, decode_records, encode_meta
from penstock.log.requests import Proposal
from tests.unit.log.bench import Bench, with_bench


@pytest.mark.parametrize("value", [b"", b"{}", b"\x00\xff" * 40, None])
def test_a_meta_record_comes_back_as_it_was(value: bytes | None) -> None:
    assert list(decode_records(encode_meta(7, "schéma", value))) == [MetaRecord(7, "schéma", value)]


@with_bench()
async def test_a_value_survives_checkpoint_eviction_and_crash(bench: Bench) -> None:
    await bench.create("s", b"[1]")
    await bench.engine.set_meta("s", "kept", b"\x00one")
    await bench.engine.set_meta("s", "gone", b"x")
    await bench.checkpoint()
    await bench.engine.set_meta("s", "late", b"two")
    await bench.engine.set_meta("s", "gone", None)
    for _ in range(2):
        await bench.crash()
        assert bench.engine.find("s", touch=False).meta == {"kept": b"\x00one", "late": b"two"}
        await bench.checkpoint()
    assert await bench.content("s") == b"1,\n"


@with_bench()
async def test_a_value_goes_with_its_stream(bench: Bench) -> None:
    await bench.create("s")
    await bench.engine.set_meta("s", "name", b"x")
    await bench.engine.delete("s")
    with pytest.raises(StreamNotFound):
        await bench.engine.set_meta("s", "name", b"y")
    await bench.create("s")
    assert bench.engine.find("s", touch=False).meta == {}


@with_bench()
async def test_a_check_refuses_appends_to_streams_with_its_value_only(bench: Bench) -> None:
    seen: list[tuple[bytes, bytes, int]] = []

    def check(proposal: Proposal) -> None:
        seen.append((proposal.value, proposal.wire, proposal.messages))
        if b"bad" in proposal.wire:
            raise BadRequest("no")

    bench.engine.add_check("rule", check)
    await bench.create("checked")
    await bench.create("free")
    setting = bench.engine.set_meta("checked", "rule", b"v1")
    with pytest.raises(BadRequest):  # decided on the pending value, before it is durable
        await bench.append("checked", b'["good", "bad"]')
    await setting
    await bench.append("checked", b'["good", 2]')
    await bench.append("free", b'"bad"')
    assert await bench.content("checked") == b'"good",\n2,\n'
    assert seen == [(b"v1", b'"good",\n"bad",\n', 2), (b"v1", b'"good",\n2,\n', 2)]


@with_bench()
async def test_setting_the_same_value_again_writes_nothing(bench: Bench) -> None:
    await bench.create("s")
    await bench.engine.set_meta("s", "name", b"x")
    written = bench.store.stats.journal_bytes_written
    await bench.engine.set_meta("s", "name", b"x")
    assert bench.store.stats.journal_bytes_written == written
