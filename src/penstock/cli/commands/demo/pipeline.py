"""The second half of `penstock demo --pipeline`: live changes of a small shop, a Spark pipeline,
its tables, and a derived table that is published back as a stream.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import Failure, main
from penstock.cli.commands.pipeline.command import missing_package
from penstock.cli.exits import FAILURE

if TYPE_CHECKING:
    from penstock.client.sync.client import Client
    from penstock.spark.config import Pipeline

ROUNDS = 5
USERS = 8
ROUND_INTERVAL_S = 0.5
CATCH_UP_TIMEOUT_S = 180.0
POLL_INTERVAL_S = 0.2
STOP_TIMEOUT_S = 30.0
STREAMS = ("demo/shop/users", "demo/shop/orders", "demo/shop/flags")
LOG_NAME = "pipeline.log"
SETTINGS_NAME = "pipeline.toml"
DERIVED = "demo/derived/users_by_city"
NAMES = ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn")
CITIES = ("Oslo", "Rome", "Lima", "Kyiv")

SETTINGS = """# Written by `penstock demo --pipeline`; docs/pipeline.md describes all settings.
[source]
url = "{url}"
streams = ["demo/shop/*"]

[warehouse]
path = "./warehouse"

[types.user]
schema = "id STRING, name STRING NOT NULL, city STRING"

[types.order]
schema = "id STRING, user STRING, total DOUBLE"

[publish.users_by_city]
sql = "SELECT city AS key, count(*) AS users FROM state_user GROUP BY city"
to = "{derived}"
"""


def check_packages() -> None:
    """Raise Failure if a package of the pipeline is missing, before anything is started."""
    for package in ("pyspark", "pyarrow", "deltalake", "duckdb", "pandas"):
        if find_spec(package) is None:
            raise missing_package(package)


def remove_tables(folder: Path) -> None:
    """Remove the tables of an earlier demo, whose streams no longer exist."""
    if (folder / SETTINGS_NAME).exists():
        shutil.rmtree(folder)


def show(url: str, folder: Path, *, stay: bool) -> None:
    """Run the demo of the pipeline; with `stay` until Ctrl-C."""
    from penstock.client.sync.client import Client

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS_NAME
    file.write_text(SETTINGS.format(url=url, derived=DERIVED), encoding="utf-8")
    click.echo(
        f"\n4. The pipeline of {file}: from streams to tables, and a result back to a stream"
    )
    with Client(url) as client, _pipeline(file) as process:
        chance = random.Random()
        click.echo("   appends live changes of users, orders and flags, some of them invalid, to")
        click.echo(f"   {', '.join(STREAMS)}")
        _open_shop(client, chance)
        for _ in range(ROUNDS):
            _change(client, chance)
            time.sleep(
                ROUND_INTERVAL_S
            )  # the pace of the demo: changes arrive while the pipeline runs
        _catch_up(client, file, process)
        _tour(url, file)
        if stay:
            click.echo("\nThe server and the pipeline keep running. Ctrl-C stops them.")
            while process.poll() is None:
                _change(client, chance)
                time.sleep(2 * ROUND_INTERVAL_S)  # the pace of the demo
            raise _ended(file)


def _ended(file: Path) -> Failure:
    lines = (file.parent / LOG_NAME).read_text(errors="replace").strip().splitlines()
    return Failure(
        f"The pipeline has ended: {lines[-1] if lines else 'its log is empty.'}", FAILURE
    )


@contextmanager
def _pipeline(file: Path) -> Iterator[subprocess.Popen[str]]:
    click.echo(f"   $ penstock pipeline run {file}")
    with (file.parent / LOG_NAME).open("w") as log:
        process = subprocess.Popen(
            [*_PENSTOCK, "pipeline", "run", str(file)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C reaches this process only; the pipeline gets one SIGTERM
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _open_shop(client: Client, chance: random.Random) -> None:
    """Append the initial users."""
    from penstock.state.events import insert

    stream = client.stream(STREAMS[0])
    stream.ensure()
    for number in range(USERS):
        name, city = NAMES[number % len(NAMES)], chance.choice(CITIES)
        value = {"id": f"u{number}", "name": name, "city": city}
        stream.append(insert("user", f"u{number}", value))


def _change(client: Client, chance: random.Random) -> None:
    """Append one round of changes, as three applications would."""
    from penstock.state.events import delete, update, upsert

    user = f"u{chance.randrange(USERS)}"
    value: dict[str, Any] = {
        "id": user,
        "name": chance.choice(NAMES),
        "city": chance.choice(CITIES),
    }
    users: list[Any] = [update("user", user, value), update("user", "u1", {**value, "id": "u1"})]
    users.append(update("user", "u9", {"id": "u9", "name": None}))  # refused by its schema
    if chance.random() < 0.2:
        users.append(delete("user", f"u{chance.randrange(2, USERS)}"))
    order = f"o{chance.randrange(100)}"
    orders = [upsert("order", order, {"id": order, "user": user, "total": chance.randrange(99)})]
    flags = [upsert("flag", "dark-mode", chance.random() < 0.5)]
    for name, events in zip(STREAMS, (users, orders, flags), strict=True):
        stream = client.stream(name)
        stream.ensure()
        stream.append_many(events)
    client.stream(STREAMS[0]).append({"not": "an event"})


def _catch_up(client: Client, file: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the pipeline has read everything and published its result."""
    from penstock.errors import NoWarehouse
    from penstock.spark.config import load_pipeline
    from penstock.spark.pipeline.status import status_of

    pipeline = load_pipeline(file)
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _ended(file)
        try:
            status = status_of(pipeline)
        except NoWarehouse:
            pass  # nothing is committed yet
        else:
            if status.lag == 0 and _published(client) == _cities(pipeline):
                return
        time.sleep(POLL_INTERVAL_S)  # another process: its status can only be polled
    raise Failure(f"The pipeline did not catch up within {CATCH_UP_TIMEOUT_S:.0f} s.", FAILURE)


def _published(client: Client) -> dict[str, int]:
    """Return the derived table as its readers see it."""
    from penstock.errors import StreamNotFound
    from penstock.state import MaterializedState

    state = MaterializedState()
    try:
        state.apply_json(json.dumps(client.stream(DERIVED).read_json()))
    except StreamNotFound:
        return {}
    return {city: value["users"] for city, value in state.get_type("users_by_city").items()}


def _cities(pipeline: Pipeline) -> dict[str, int]:
    """Return the same counts from the tables of the pipeline."""
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.warehouse import Warehouse

    duck = Duck(Warehouse(pipeline.warehouse.path), pipeline.types)
    try:
        rows = duck.sql(pipeline.publish["users_by_city"].sql or "").to_pylist()
        return {row["key"]: row["users"] for row in rows if row["key"] is not None}
    finally:
        duck.close()


def _tour(url: str, file: Path) -> None:
    query = "SELECT _key, name, city FROM state_user ORDER BY _key"
    history = (
        "SELECT name, city, _valid_from_ordinal, _valid_to_ordinal, _is_current FROM history_user "
        "WHERE _key = 'u1' ORDER BY _valid_from_ordinal DESC LIMIT 5"
    )
    dead = "SELECT stream, ordinal, value, error FROM dead_letters ORDER BY ordinal DESC LIMIT 3"
    for title, arguments in (
        ("5. The progress of the pipeline", ["status", str(file)]),
        ("6. The state of the users", ["sql", str(file), query]),
        ("7. The last values of user u1", ["sql", str(file), history]),
        ("8. The invalid events, with the reason", ["sql", str(file), dead]),
    ):
        click.echo(f"\n{title}")
        _run(["pipeline", *arguments])
    click.echo("\n9. The derived table, published back as a stream and read with the CLI")
    _run(["state", "show", DERIVED, "--url", url])


def _run(arguments: list[str]) -> None:
    """Print a command and its output. It runs in this process, which saves a second."""
    shown = " ".join(f'"{argument}"' if " " in argument else argument for argument in arguments)
    click.echo(f"   $ penstock {shown}")
    with redirect_stdout(StringIO()) as printed:
        main.main(arguments, prog_name="penstock", standalone_mode=False)
    for line in printed.getvalue().splitlines():
        click.echo(f"   {line}")


_PENSTOCK = (sys.executable, "-m", "penstock.cli")
