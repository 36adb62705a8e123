"""The guide to the errors is complete, and names only what there is."""

from __future__ import annotations

import re

from penstock import errors
from penstock.config.settings import SETTINGS
from penstock.error_guide import (
    GUIDE,
    HEADERS,
    MORE_FIELDS,
    every_error,
    fields_of,
    headers_of,
    is_sent,
)
from penstock.errors import PenstockError, StreamTrimmed
from scripts.docs import error_list


def test_every_code_has_an_entry_and_every_entry_a_code() -> None:
    codes = {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, PenstockError)
    }
    assert set(GUIDE) == codes == set(every_error())


def test_texts_are_sentences() -> None:
    texts = [text for advice in GUIDE.values() for text in advice]
    texts += [text for each in (*MORE_FIELDS.values(), *HEADERS.values()) for text in each.values()]
    for text in texts:
        assert text.endswith("."), text
        assert text.count("`") % 2 == 0, text


def test_settings_that_the_texts_name_exist() -> None:
    names = {setting.name for setting in SETTINGS} | {"since_id"}
    text = " ".join(part for advice in GUIDE.values() for part in advice)
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text))
    assert len(named) > 5
    assert named <= names


def test_fields_are_those_of_the_class_and_its_bases() -> None:
    assert set(fields_of(errors.ValidationFailed)) == {"field", "rule", "index", "path"}
    assert fields_of(errors.EmptyBody) == {}
    assert set(headers_of(errors.LiveReadersFull)) == {"Retry-After"}
    trimmed = StreamTrimmed("Gone.", Stream_Earliest_Offset="1_2")
    assert set(trimmed.members) <= set(fields_of(StreamTrimmed))
    assert set(trimmed.headers) <= set(headers_of(StreamTrimmed))


def test_what_no_server_sends_is_told_apart() -> None:
    assert not is_sent(errors.StoreLocked)
    assert not is_sent(errors.WarehouseBroken)
    assert is_sent(errors.InternalError)


def test_the_page_has_every_code_with_its_advice() -> None:
    page = error_list()
    for code, advice in GUIDE.items():
        section = page.partition(f"\n#### {code}\n")[2].partition("\n#### ")[0]
        assert advice.cause in section
        assert advice.remedy in section
