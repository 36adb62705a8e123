"""Answering the questions of a plan by reading the stream, as a flow without I/O."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from penstock.client import requests
from penstock.client.flow import Flow, send
from penstock.client.operations import Operations, ReadOptions
from penstock.client.retry import Retry
from penstock.errors import BadRequest, Gone, StreamNotFound, StreamTrimmed
from penstock.protocol.offsets import START
from penstock.state.live.plan import Changed, Count, Plan, Question


def answered(planning: Generator[Question, Any, Plan], url: str, retry: Retry) -> Flow[Plan]:
    """Return the plan; the questions of the rules are answered by reading the stream at `url`."""
    answer: int | bool | None = None
    while True:
        try:
            question = planning.send(answer)
        except StopIteration as stop:
            plan: Plan = stop.value
            return plan
        answer = yield from _answer(question, url, retry)


def _answer(question: Question, url: str, retry: Retry) -> Flow[int | bool | None]:
    try:
        if isinstance(question, Count):
            return (yield from _count(question, url, retry))
        if isinstance(question, Changed):
            return (yield from _changed(question, url, retry))
        answer = yield from send(requests.read(url, question.offset), retry)
        return bool(answer.offset)
    except (BadRequest, Gone, StreamNotFound):
        return None


def _changed(question: Changed, url: str, retry: Retry) -> Flow[bool]:
    offset = question.start
    while offset < question.until:
        try:
            answer = yield from send(requests.read(url, offset, until=question.until), retry)
        except StreamTrimmed:
            if offset == START:
                raise
            offset = START
            continue
        if answer.body:
            question.take(answer.body)
        if answer.offset == offset:
            break
        offset = answer.offset
    return offset == question.until


def _count(question: Count, url: str, retry: Retry) -> Flow[int | None]:
    options = ReadOptions(offset=question.start, until=question.until, decode=False)
    read = yield from Operations(url, retry, None).read(options)
    if read.next_offset != question.until:
        return None
    return len(msgspec.json.decode(read.data, type=list[msgspec.Raw])) if read.data else 0
