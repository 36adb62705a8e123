"""The command line, as a process where that matters."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock import errors, plain_modules
from penstock.cli import COMMANDS, SECTIONS, main
from penstock.config.settings import SETTINGS
from scripts import docs
from tests.helpers.server import ROOT, ServerDidNotStart, running_server

HEAVY = {
    "asyncio",
    "httptools",
    "httpx2",
    "prometheus_client",
    "sqlite3",
    "structlog",
    "tomllib",
    "uvloop",
}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner(env={setting.env: None for setting in SETTINGS})


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["version"], ["--version"]])
def test_help_does_not_load_the_server(arguments: list[str], tmp_path: Path) -> None:
    script = "\n".join(
        [
            "import sys",
            "from penstock.cli import main",
            f"main({arguments!r}, prog_name='penstock', standalone_mode=False)",
            f"print('loaded:', *sorted({HEAVY!r} & sys.modules.keys()))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_every_command_has_a_file_and_says_what_it_does() -> None:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()


def commands(group: click.Group, path: str = "penstock") -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def _is_sentence(text: str) -> bool:
    """Whether a text starts with a capital (or a name) and ends with a full stop."""
    return bool(re.match(r"[A-Z`{%\\-]", text)) and text.endswith((".", "?"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_is_a_sentence(name: str) -> None:
    overview = {command: text for section in SECTIONS.values() for command, text in section.items()}
    assert _is_sentence(overview[name])
    for path, command in commands(main):
        if path.split()[1] != name:
            continue
        assert _is_sentence((command.help or "").split("\n\n")[0].strip()), path
        for option in command.params:
            if isinstance(option, click.Option):
                help = (option.help or "").split("  [")[0]
                assert _is_sentence(help), f"{path} {option.opts}: {option.help}"


ERRORS = {"BadParameter", "CannotCheck", "ClickException", "Failure", "InvalidSetting"}
ERRORS |= {"PenstockError", "UsageError", *vars(errors)}
CLI_SOURCES = sorted((ROOT / "src" / "penstock" / "cli").rglob("*.py"))
CLI_SOURCES += sorted((ROOT / "src" / "penstock" / "config").rglob("*.py"))


def _messages(source: str) -> Iterator[str]:
    """The literal messages of the errors that a source makes, with `{}` for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = ast.unparse(node.func).split(".")[-1]
        message = node.args[0]
        if name in ERRORS and isinstance(message, ast.Constant | ast.JoinedStr):
            parts = message.values if isinstance(message, ast.JoinedStr) else [message]
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts
            )


@pytest.mark.parametrize("path", CLI_SOURCES, ids=lambda path: path.stem)
def test_every_error_of_the_commands_is_a_sentence(path: Path) -> None:
    for message in _messages(path.read_text()):
        assert _is_sentence(message) or message.endswith("{}"), message


def test_the_check_itself_sees_the_messages_of_errors() -> None:
    source = "raise click.UsageError(f'no {x}')\nraise Conflict('A b.')\nprint('c')"
    assert list(_messages(source)) == ["no {}", "A b."]
    assert [_is_sentence(message) for message in _messages(source)] == [False, True]


def test_an_unknown_command_is_a_usage_error(runner: CliRunner) -> None:
    result = runner.invoke(main, ["frobnicate"])
    assert result.exit_code == 2
    assert "There is no command 'frobnicate'." in result.output


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version_names_the_distribution_and_the_python(
    runner: CliRunner, arguments: list[str]
) -> None:
    python, form = platform.python_version(), plain_modules.form()
    line = f"penstock {penstock.__version__} (penstock-streams, Python {python}, {form})\n"
    assert runner.invoke(main, arguments).output == line


def test_version_as_json(runner: CliRunner) -> None:
    assert json.loads(runner.invoke(main, ["version", "--json"]).output) == {
        "version": penstock.__version__,
        "distribution": "penstock-streams",
        "python": platform.python_version(),
        "form": plain_modules.form(),
    }


def test_config_shows_every_setting_and_who_set_it(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('chunk_bytes = "1MiB"\n')
    result = runner.invoke(main, ["config", "--port", "9"], env={"PENSTOCK_MEMORY": "yes"})
    assert result.exit_code == 0
    lines = result.output.splitlines()[1:]
    rows = {line.split()[0]: line.split() for line in lines if line and not line.endswith(":")}
    assert rows.keys() == {setting.name for setting in SETTINGS}
    assert rows["port"][1:3] == ["9", "--port"]
    assert rows["memory"][1:3] == ["true", "PENSTOCK_MEMORY"]
    assert rows["chunk_bytes"][1:3] == ["1MiB", "penstock.toml"]
    assert rows["host"][1:3] == ["127.0.0.1", "default"]


@pytest.mark.parametrize("arguments", [["config"], ["config", "--help"], ["serve", "--help"]])
def test_common_settings_are_shown_before_the_advanced_ones(
    runner: CliRunner, arguments: list[str]
) -> None:
    output = runner.invoke(main, arguments, terminal_width=200).output
    _, common, advanced = re.split("^(?:Common|Advanced) settings:$", output, flags=re.MULTILINE)
    for setting in SETTINGS:
        shown = re.compile(rf"(^|\s){setting.flag}(\s|$)")
        assert bool(shown.search(common)) is setting.common, setting.name
        assert bool(shown.search(advanced)) is not setting.common, setting.name


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        ([], {}, "true"),
        (["--no-console"], {}, "false"),
        (["--no-console"], {"PENSTOCK_CONSOLE": "true"}, "false"),
        (["--console"], {"PENSTOCK_CONSOLE": "false"}, "true"),
        ([], {"PENSTOCK_CONSOLE": "false"}, "false"),
    ],
)
def test_what_is_on_by_default_has_a_flag_that_turns_it_off(
    runner: CliRunner, arguments: list[str], env: dict[str, str], expected: str
) -> None:
    result = runner.invoke(main, ["config", "--json", *arguments], env=env)
    values = {row["name"]: row["value"] for row in json.loads(result.output)}
    assert str(values["console"]).lower() == expected


def test_config_as_json_names_the_tier_of_each_setting(runner: CliRunner) -> None:
    rows = {
        row["name"]: row for row in json.loads(runner.invoke(main, ["config", "--json"]).output)
    }
    assert rows["port"]["tier"] == "common"
    assert rows["journal_file_bytes"]["tier"] == "advanced"


def test_config_as_json_keeps_the_token_to_itself(runner: CliRunner) -> None:
    result = runner.invoke(main, ["config", "--json"], env={"PENSTOCK_TOKEN": "s3cret"})
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert rows["port"]["value"] == 4437
    assert rows["auth_token"]["origin"] == "PENSTOCK_TOKEN"
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "http"], "Setting port must be a whole number, not 'http' (from --port)."),
        (["--durability", "hope"], "must be one of fsync, buffered"),
        (["--max-body", "1GiB"], "receive_bytes_max must be at least body_bytes_max"),
        (["--config", "absent.toml"], "There is no settings file absent.toml."),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_1(
    runner: CliRunner, arguments: list[str], message: str
) -> None:
    result = runner.invoke(main, ["serve", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_serve_prints_one_line_and_stops_cleanly(tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path / "data") as server:
        where = f"(data: {tmp_path / 'data'})"
        assert server.ready_line == f"Penstock serving http://127.0.0.1:{server.port} {where}"
        assert server.terminate() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


def test_a_taken_port_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        message = _refused("--memory", "--port", str(port))
        assert message == f"Error: 127.0.0.1:{port} is in use by another program. " + (
            "Choose another port with --port."
        )


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path):
        assert "in use" in _refused("--port", "0", "--data-dir", str(tmp_path))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert str(tmp_path / "file") in _refused("--port", "0", "--data-dir", str(tmp_path / "file"))


def _refused(*arguments: str) -> str:
    """What a server that cannot start says: one line on stderr, nothing on stdout, exit code 1."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_the_test_helper_reports_why_a_server_did_not_start() -> None:
    with (
        pytest.raises(ServerDidNotStart, match="must be one of fsync"),
        running_server(args=["--durability", "hope"]),
    ):
        pass


def test_the_demo_shows_its_messages_and_ends(tmp_path: Path) -> None:
    for started in ("created", "exists, with the messages of earlier runs"):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "demo", "--once", "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            check=False,
            # A busy machine holds the loop up, and the log would say so.
            env={**os.environ, "PENSTOCK_LOOP_STALL_MS": "0"},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert started in done.stdout
        got = done.stdout.split("and the reader received")[1]
        assert got.index("placed") < got.index("paid") < got.index("shipped")
        assert done.stdout.endswith("Stopped.\n")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated pages, by a process of their own: a command keeps the help option of the first
    context that any test has used it in."""
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, "-m", "scripts.docs", folder], cwd=ROOT, check=True)
    return folder


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_docs_are_up_to_date(generated: Path, name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    assert page == (generated / name).read_text(), "stale: run `make docs`"


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    common, advanced = page.split("\n## Advanced settings\n")
    for setting in SETTINGS:
        section = common if setting.common else advanced
        for word in (setting.flag, setting.env, setting.help):
            assert word in section
        assert f"| `{setting.name}` |" in section
