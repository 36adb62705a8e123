"""Reading Spark's checkpoint without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import WarehouseMismatch
from penstock.spark.pipeline.checkpoint import Checkpoint, parse_offset_log

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"a":"b\\u2028c"}}'
POSITIONS = '{"kind":"penstock","streams":{"orders":["0000000000000001_0000000000000010",1]}}'


def test_positions_are_the_offset_of_the_only_source() -> None:
    text = f"v1\n{METADATA}\n{POSITIONS}"
    streams = {"orders": ["0000000000000001_0000000000000010", 1]}
    for spelled in (text, text + "\n"):
        assert parse_offset_log(spelled) == {"kind": "penstock", "streams": streams}


def test_a_line_ends_with_a_newline_and_nothing_else() -> None:
    text = 'v1\n{}\n{"streams":{"a\u2028b":1}}'  # other characters end a line for splitlines
    assert parse_offset_log(text) == {"streams": {"a\u2028b": 1}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "its version is '' instead of 'v1'"),
        (f"v2\n{METADATA}\n{POSITIONS}", "its version is 'v2' instead of 'v1'"),
        ("v1", "it has 0 sources instead of 1"),
        (f"v1\n{METADATA}", "it has 0 sources instead of 1"),
        (f"v1\n{METADATA}\n{POSITIONS}\n{POSITIONS}", "it has 2 sources instead of 1"),
        (f"v1\n{METADATA}\n-", "the offset of its source is no JSON object"),
        (f"v1\n{METADATA}\n[1]", "the offset of its source is no JSON object"),
    ],
)
def test_another_format_is_an_error_that_names_the_file(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text(text, encoding="utf-8")
    with pytest.raises(WarehouseMismatch, match="The file offsets/7 of the checkpoint") as caught:
        Checkpoint(str(tmp_path)).positions(7)
    assert reason in caught.value.detail


def test_a_batch_that_was_not_planned_has_no_positions(tmp_path: Path) -> None:
    assert Checkpoint(str(tmp_path)).positions(0) is None
