"""How limits of retention are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.config.load import load
from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.protocol.retention import Keep, parse_age, parse_keep, parse_rules, show_age


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("7d", Keep(604_800, None)),
        ("90s", Keep(90, None)),
        ("30m", Keep(1800, None)),
        ("2h,1GiB", Keep(7200, 2**30)),
        ("512KB,1d", Keep(86_400, 512 * 1024)),
        ("1000B", Keep(None, 1000)),
        ("4x", Keep(None, None, 4)),
        ("1GiB,2x,7d", Keep(604_800, 2**30, 2)),
    ],
)
def test_limits(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize(
    "text", ["", "7", "0d", "0B", "1d,2d", "1B,2B", "1w", "-1d", "1d,", "1M", "1x", "0x", "2x,3x"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError):
        parse_keep(text)


def test_the_longest_start_of_a_path_comes_first() -> None:
    rules = parse_rules("a/=1d  a/b=c/=1B =2d")
    assert rules == [
        ("a/b=c/", Keep(None, 1)),
        ("a/", Keep(86_400, None)),
        ("", Keep(172_800, None)),
    ]
    assert parse_rules("") == []


@pytest.mark.parametrize("text", ["a/", "a/=1d a/=2d", "a/=x"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rules(text)


def test_the_setting_says_what_is_wrong() -> None:
    assert load({"retention": " a/=1d   b=1KB "}, {}).retention == "a/=1d b=1KB"
    with pytest.raises(InvalidSetting, match="must be rules such as"):
        load({"retention": "a/=soon"}, {})
    assert Settings().retention == ""


def test_a_rule_with_a_bad_pattern_is_refused_where_settings_are_read(tmp_path: Path) -> None:
    reason = "Setting retention (from {}): 'logs/**x' is no pattern: `**` is a whole segment"
    with pytest.raises(InvalidSetting, match=re.escape(reason.format("PENSTOCK_RETENTION"))):
        load({}, {"PENSTOCK_RETENTION": "a/=1d logs/**x=7d"})
    shown = CliRunner().invoke(main, ["config", "--retention", "logs/**x=7d"])
    assert shown.exit_code != 0
    assert reason.format("--retention") in shown.output
    file = tmp_path / "penstock.toml"
    file.write_text('retention = "logs/*?=7d"')
    shown = CliRunner().invoke(main, ["config", "--config", str(file)])
    assert shown.exit_code != 0
    assert "`?` is no wildcard" in shown.output


def test_two_spellings_of_a_pattern_are_one_rule() -> None:
    assert parse_rules("/a/%41*/=1d") == [("a/A*", Keep(86_400, None))]
    with pytest.raises(ValueError):
        parse_rules("a/*=1d a/*/=2d")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("36h", 129_600), ("7d", 604_800)]
)
def test_an_age_reads_back_as_it_is_shown(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds
    assert show_age(seconds) == text


@pytest.mark.parametrize("text", ["", "7", "0s", "1w", "-1d", "1.5h", "999999999999d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_age(text)
