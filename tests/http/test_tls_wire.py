"""The tests of plain connections, run again over TLS: it changes nothing that HTTP can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.certs import Authority
from tests.http import test_connection, test_event_connection, wire
from tests.security import test_request_limits, test_smuggling

NOT_OVER_TLS = {
    # They count turns of the loop or pieces of input, of which TLS has others.
    "test_half_closed_client_gets_all_its_answers",
    "test_tiny_chunks_leave_turns_to_others",
    # Its client reads on inside TLS until a buffer of its own is full; see test_tls.py.
    "test_reader_that_takes_nothing_is_cut_off",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> wire.TlsFiles:
    authority = Authority(Path(tmp_path_factory.mktemp("tls")))
    return wire.TlsFiles(authority.issue("server"), authority.client())


@pytest.fixture(autouse=True)
def _over_tls(files: wire.TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "tls", files)


globals().update(
    {
        f"{name}_over_tls": function
        for module in (
            test_connection,
            test_event_connection,
            test_request_limits,
            test_smuggling,
        )
        for name, function in vars(module).items()
        if name.startswith("test_") and name not in NOT_OVER_TLS
    }
)
