"""Settings: units, bounds, precedence and helpful refusals."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from penstock import limits
from penstock.config.load import load, resolve
from penstock.config.setting import InvalidSetting
from penstock.config.settings import SETTINGS, Settings
from penstock.units import parse_seconds, parse_size, parse_switch, show_size

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("512k", 512 * 1024),
        ("512K", 512 * 1024),
        ("64MiB", 64 * MIB),
        ("64 MiB", 64 * MIB),
        ("64mb", 64 * MIB),
        ("1G", 1024 * MIB),
        ("17b", 17),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5M", "1e3", "64 Mi B", "٣", "1x", "9999999T"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 4096, 64 * MIB, 3 * 1024 * MIB, 1025])
def test_a_shown_size_reads_back_as_itself(size: int) -> None:
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e9", "", "1,5", "5m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_seconds(text)


def test_durations_are_seconds_with_an_optional_unit() -> None:
    assert [parse_seconds(text) for text in ("30", "0.5", "30s")] == [30.0, 0.5, 30.0]


def test_switches_are_words_or_digits() -> None:
    assert all(parse_switch(text) for text in ("true", "YES", "on", "1"))
    assert not any(parse_switch(text) for text in ("false", "No", "off", "0"))
    with pytest.raises(ValueError):
        parse_switch("maybe")


def test_defaults_are_valid_and_come_from_limits() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 4437, Path("data"))
    assert settings.body_bytes_max == limits.BODY_BYTES_MAX
    assert settings.auth_token is None


def test_every_setting_is_described_and_named_once() -> None:
    described = [setting.name for setting in SETTINGS]
    assert sorted(described) == sorted(each.name for each in fields(Settings))
    for names in zip(*((s.name, s.flag, s.env) for s in SETTINGS), strict=True):
        assert len(set(names)) == len(SETTINGS)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


def test_an_operator_needs_about_twenty_common_settings() -> None:
    common = {setting.name for setting in SETTINGS if setting.common}
    assert {"host", "port", "data_dir", "durability", "auth_token", "retention"} <= common
    assert 15 <= len(common) <= 25


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_a_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('port = 1\nhost = "10.0.0.1"\nchunk_bytes = "1MiB"\n')
    environ = {"PENSTOCK_PORT": "2", "PENSTOCK_HOST": "10.0.0.2"}
    resolved = resolve({"port": "3", "memory": None}, environ, file)
    assert (resolved.settings.port, resolved.origins["port"]) == (3, "--port")
    assert (resolved.settings.host, resolved.origins["host"]) == ("10.0.0.2", "PENSTOCK_HOST")
    assert (resolved.settings.chunk_bytes, resolved.origins["chunk_bytes"]) == (MIB, str(file))
    assert (resolved.settings.memory, resolved.origins["memory"]) == (False, "default")


def test_the_file_in_the_working_directory_is_used_unless_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("port = 1\nmemory = true\n")
    (tmp_path / "named.toml").write_text("port = 2\n")
    (tmp_path / "flagged.toml").write_text("port = 3\n")
    environ = {"PENSTOCK_CONFIG": "named.toml"}
    assert load({}, {}) == Settings(port=1, memory=True)
    assert load({}, environ) == Settings(port=2)
    assert load({}, environ, Path("flagged.toml")) == Settings(port=3)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("prot = 1", "There is no setting 'prot' (from penstock.toml). Did you mean port?"),
        ("[server]\nport = 1", "There is no setting 'server' (from penstock.toml)."),
        ("port = true", "Setting port must be a whole number, not True (from penstock.toml)."),
        ("port = 70000", "Setting port must be at most 65535 (from penstock.toml)."),
        ("port = [1]", "port must be a whole number, not [1]"),
        ("port =", "penstock.toml is not valid TOML: Invalid value"),
        ("long_poll_timeout_s = 0", "long_poll_timeout_s must be at least 0.001"),
        ("long_poll_timeout_s = inf", "must be seconds such as 30 or 0.5, not inf"),
        ('chunk_bytes = "4 parsecs"', "must be a size such as"),
        ('durability = "hope"', "must be one of fsync, buffered, not 'hope'"),
        ('cors_origins = "a\\r\\nb"', "must be origins such as https://app.example.com:8443"),
        (
            'cors_origin = "*"',
            "There is no setting 'cors_origin' (from penstock.toml). It is cors_origins now.",
        ),
        ('cors_origins = ["*", "https://a"]', "must be origins such as"),
        ("cors_credentials = true", "cors_credentials needs origins by name"),
        ('cors_origins = "*"\ncors_credentials = true', "needs origins by name"),
        ('allowed_hosts = "streams.example:80"', "must be host names such as"),
        ('body_bytes_max = "1GiB"', "receive_bytes_max must be at least body_bytes_max (1GiB)"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "penstock.toml").write_text(toml)
    with pytest.raises(InvalidSetting) as refused:
        load({}, {})
    assert message in refused.value.detail
    assert "\n" not in refused.value.detail


def test_a_named_file_must_exist_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"There is no settings file absent\.toml\."):
        load({}, {"PENSTOCK_CONFIG": "absent.toml"})
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidSetting, match="it is not UTF-8"):
        load({}, {}, Path("binary.toml"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PENSTOCK_DATADIR", "PENSTOCK_DATA_DIR"),
        ("PENSTOCK_AUTH_TOKEN", "PENSTOCK_TOKEN"),
        ("PENSTOCK_LONG_POLL_TIMEOUT", "PENSTOCK_LONG_POLL_TIMEOUT_S"),
    ],
)
def test_a_mistyped_variable_names_the_setting_it_resembles(name: str, meant: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} is not a setting. Did you mean {meant}?"):
        load({}, {name: "1"})


def test_variables_of_others_are_left_alone() -> None:
    kubernetes = {
        "PENSTOCK_PORT": "tcp://10.0.0.1:4437",
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_HTTP": "4437",
        "PENSTOCK_PORT_4437_TCP_ADDR": "10.0.0.1",
    }
    assert load({}, {**kubernetes, "PENSTOCK_ZZZ": "1", "HOST": "example"}) == Settings()


def test_a_secret_is_not_repeated_in_an_error() -> None:
    with pytest.raises(InvalidSetting) as refused:
        load({}, {"PENSTOCK_TOKEN": "s3cr\u00e9t"})
    assert "s3cr" not in refused.value.detail


def test_values_given_in_code_are_checked_too() -> None:
    with pytest.raises(
        InvalidSetting, match=r"There is no setting 'datadir'\. Did you mean data_dir\?"
    ):
        load({"datadir": "x"}, {})
    with pytest.raises(InvalidSetting, match="port must be at most 65535"):
        Settings(port=70_000)
    with pytest.raises(InvalidSetting, match="data_dir must be a folder, not str"):
        Settings(data_dir="data")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="at least"):
        Settings(sse_timeout_s=float("nan"))
