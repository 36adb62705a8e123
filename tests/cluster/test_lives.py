"""The check of streams that were deleted, itself: a late creation may bring one back, nothing else
may."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from tests.cluster.lives import Life, Lives

KEPT = {"code": "stream-soft-deleted"}


def offset(generation: int, position: int = 0) -> str:
    return f"{generation:016d}_{position:016d}"


def there(generation: int, numbers: Iterable[int] = (), *, closed: bool = False) -> httpx.Response:
    """Return the answer to a read of a whole stream."""
    headers = {"stream-next-offset": offset(generation), "stream-up-to-date": "true"}
    if closed:
        headers["stream-closed"] = "true"
    return httpx.Response(200, headers=headers, json=[*numbers])


def stale(generation: int, numbers: Iterable[int] = ()) -> httpx.Response:
    """Return the answer of a node that was replaced to a read."""
    headers = {"stream-next-offset": offset(generation)}
    return httpx.Response(200, headers=headers, json=[*numbers])


GONE = httpx.Response(404, text="gone")
DELETED = httpx.Response(204)


class Script:
    """A workload whose nodes answer as it is written."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.unanswered: dict[str, list[str]] = defaultdict(list)
        self.errors: list[BaseException] = []
        self.sent: list[str] = []

    def send(self, method: str, target: str, *_: Any, **__: str) -> httpx.Response:
        self.sent.append(method)
        return self.answers.pop(0)

    def logs(self, lines: int) -> str:
        return ""

    @property
    def is_over(self) -> bool:
        return not self.answers


def lives(script: Script) -> Lives:
    work: Any = script
    return Lives(work, "", seed=1)


def life(late: int = 0, *, status: int = 201, source: Life | None = None) -> Life:
    created = httpx.Response(status, headers={"stream-next-offset": offset(7)})
    path = "a" if source is None else "a-fork"
    return Life(path, created, ["time-out"] * late, source)


def test_a_stream_that_is_gone_was_asked_for_once() -> None:
    script = Script(DELETED, GONE)
    lives(script).end(life())
    assert script.is_over


def test_a_late_creation_is_deleted_and_stays_away() -> None:
    script = Script(DELETED, there(8), DELETED, there(9), DELETED, GONE)
    lives(script).end(life(late=2))
    assert script.is_over


def test_the_word_of_a_replaced_node_is_no_answer() -> None:
    script = Script(DELETED, stale(7, [0, 1, 2]), GONE)
    lives(script).end(life())
    assert script.is_over


@pytest.mark.parametrize(
    ("late", "status", "back", "reason"),
    [
        (0, 201, [there(8)], "created more often"),
        (1, 200, [there(8)], "created more often"),
        (1, 201, [there(8), DELETED, there(9)], "created more often"),
        (1, 201, [there(7)], "what was deleted is there again"),
        (1, 201, [there(7, [0, 1, 2])], "what was deleted is there again"),
        (1, 201, [there(6)], "what was deleted is there again"),
        (2, 201, [there(8), DELETED, there(8)], "what was deleted is there again"),
        (1, 201, [there(8, [0])], "not as a creation makes it"),
        (1, 201, [there(8, closed=True)], "nobody has closed"),
        (1, 201, [httpx.Response(410, json=KEPT)], "a fork that nobody has made"),
        (1, 201, [httpx.Response(410, json={"code": "gone"})], "gone"),
    ],
)
def test_a_stream_that_comes_back_in_any_other_way_fails(
    late: int, status: int, back: list[httpx.Response], reason: str
) -> None:
    script = Script(DELETED, *back)
    with pytest.raises(AssertionError, match=reason) as failed:
        lives(script).end(life(late, status=status))
    assert script.is_over
    for evidence in ("generation 7", "DELETE 204", "time-out" if late else "none"):
        assert evidence in str(failed.value)


def test_a_late_fork_has_what_its_source_had() -> None:
    script = Script(DELETED, there(8, [0, 1, 2]), DELETED, GONE)
    lives(script).end(life(late=1, source=life()))
    assert script.is_over


@pytest.mark.parametrize("numbers", [[], [0, 1], [0, 1, 2, 3]])
def test_a_late_fork_has_nothing_else(numbers: list[int]) -> None:
    script = Script(DELETED, there(8, numbers))
    with pytest.raises(AssertionError, match="not as a creation makes it"):
        lives(script).end(life(late=1, source=life()))


def test_a_late_fork_of_a_late_source_is_empty() -> None:
    script = Script(DELETED, there(8), DELETED, GONE)
    lives(script).end(life(late=1, source=life(late=1)))
    assert script.is_over


def ended(fork: Life) -> tuple[Script, Lives]:
    """Return lives of which a fork has ended, and the script of what comes then."""
    script = Script(DELETED, GONE)
    some = lives(script)
    some.end(fork)
    return script, some


def test_a_source_may_be_kept_for_a_late_fork() -> None:
    source = life()
    fork = life(late=1, source=source)
    script, some = ended(fork)
    kept = httpx.Response(410, json=KEPT)
    script.answers += [DELETED, kept, there(8, [0, 1, 2]), DELETED, GONE, GONE]
    some.end(source)
    assert script.is_over


def test_a_source_is_not_kept_for_a_fork_that_is_gone() -> None:
    source = life()
    script, some = ended(life(source=source))
    script.answers += [DELETED, httpx.Response(410, json=KEPT), GONE]
    with pytest.raises(AssertionError, match="created more often"):
        some.end(source)


def test_a_deletion_that_finds_nothing_is_the_second() -> None:
    script = Script(GONE)
    with pytest.raises(AssertionError, match="cannot be deleted"):
        lives(script).end(life())
    script = Script(GONE, GONE)
    script.unanswered["DELETE /v1/stream/a"].append("time-out")
    lives(script).end(life())
    assert script.is_over


def test_what_has_ended_is_looked_at_again_at_the_end() -> None:
    script, some = ended(life())
    script.answers += [there(7, [0, 1, 2])]
    with pytest.raises(AssertionError, match="what was deleted is there again"):
        some.check()
