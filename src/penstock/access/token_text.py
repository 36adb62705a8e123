"""The text of a stored token: `pst_<id>_<secret><check>`.

The check characters tell a token that was mistyped or cut off from one that is wrong, and let
scanners of source code recognise tokens without a false alarm. Pure but for randomness.
"""

from __future__ import annotations

import re
import secrets
import string
import zlib
from hashlib import sha256
from typing import Final, NamedTuple

PREFIX: Final = "pst_"
ID_CHARACTERS: Final = 10
SECRET_CHARACTERS: Final = 40
"""Characters of a secret, of 5.9 bits each: 238 bits."""
CHECK_CHARACTERS: Final = 6

_ID_ALPHABET: Final = "23456789abcdefghjkmnpqrstuvwxyz"  # Without what looks alike.
_ALPHABET: Final = string.digits + string.ascii_letters
_ID: Final = rf"[{_ID_ALPHABET}]{{{ID_CHARACTERS}}}"
_WHOLE: Final = re.compile(
    rf"{PREFIX}(?P<id>{_ID})_"
    rf"(?P<secret>[0-9A-Za-z]{{{SECRET_CHARACTERS}}})(?P<check>[0-9A-Za-z]{{{CHECK_CHARACTERS}}})",
    re.ASCII,
)
_WHOLE_ID: Final = re.compile(_ID, re.ASCII)


class TokenText(NamedTuple):
    """The parts of a token. Only `digest` of the secret is ever stored."""

    id: str
    secret: str

    @property
    def digest(self) -> str:
        return sha256(self.secret.encode("ascii")).hexdigest()

    @property
    def text(self) -> str:
        body = f"{PREFIX}{self.id}_{self.secret}"
        return body + _check(body)


def new_token() -> TokenText:
    """Return a random token."""
    return TokenText(
        _random(_ID_ALPHABET, ID_CHARACTERS),
        _random(_ALPHABET, SECRET_CHARACTERS),
    )


def parse_token(text: str) -> TokenText | None:
    """Return the parts of a text; None if it is no whole token."""
    match = _WHOLE.fullmatch(text)
    if match is None or _check(text[:-CHECK_CHARACTERS]) != match["check"]:
        return None
    return TokenText(match["id"], match["secret"])


def is_token_id(text: str) -> bool:
    return _WHOLE_ID.fullmatch(text) is not None


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


def _check(body: str) -> str:
    value, characters = zlib.crc32(body.encode("ascii")), ""
    for _ in range(CHECK_CHARACTERS):
        value, digit = divmod(value, len(_ALPHABET))
        characters = _ALPHABET[digit] + characters
    return characters
