"""The error tree: every failure has a stable code, a sensible status and a place in the drawing."""

from __future__ import annotations

import re

import pytest

from penstock import errors
from penstock.errors import PenstockError, SequenceGap, StoreError

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PenstockError)
]
# The base itself is never raised and lends its code to InternalError.
RAISED = [cls for cls in CLASSES if cls is not PenstockError]


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in RAISED]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("cls", CLASSES)
def test_status_code_and_title_are_fit_for_an_answer(cls: type[PenstockError]) -> None:
    assert 400 <= cls.status <= 599
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cls.code)
    assert cls.title[0].isupper()
    assert not cls.title.endswith(".")


@pytest.mark.parametrize("cls", CLASSES)
def test_class_is_drawn_in_the_tree(cls: type[PenstockError]) -> None:
    assert errors.__doc__ is not None
    assert re.search(rf"\b{cls.__name__}\b", errors.__doc__)


def test_tree_draws_no_class_that_does_not_exist() -> None:
    tree = (errors.__doc__ or "").partition("\n")[2]
    drawn = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", tree))
    assert drawn == {cls.__name__ for cls in CLASSES}


def test_every_status_in_the_tree_is_the_class_status() -> None:
    drawn = re.findall(r"([A-Z]\w+) (\d{3})", errors.__doc__ or "")
    assert {name: int(status) for name, status in drawn} == {
        name: getattr(errors, name).status for name, _ in drawn
    }


def test_header_names_are_given_with_underscores() -> None:
    error = SequenceGap("gap", Producer_Expected_Seq="3")
    assert error.headers == {"Producer-Expected-Seq": "3"}
    assert error.detail == str(error) == "gap"
    assert StoreError("x").headers == {}
