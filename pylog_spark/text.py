"""Values for a person: safe for terminals, tables and logs."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from storage_core.redaction import without_secrets

# What Python makes of a byte that is no UTF-8, and other halves of characters: no text has them.
_NO_TEXT: Final = re.compile("[\ud800-\udfff]")
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF
# How JSON spells half of a character; whole ones of the higher planes, too.
_HALF: Final = "\\ud"
_MOST_OF_LINE: Final = 600
MAX_MESSAGE: Final = 2000  # characters of an error that nobody expected


def valid_text(text: str) -> str:
    r"""Return text that is UTF-8: a byte that is none becomes ``\xNN``."""
    return text if text.isascii() else _NO_TEXT.sub(_spell_out, text)


def valid_texts(value: Any) -> Any:
    """Return a value with valid texts, in lists and mappings too."""
    match value:
        case str():
            return valid_text(value)
        case Mapping():
            return {valid_texts(name): valid_texts(part) for name, part in value.items()}
        case list() | tuple():
            return [valid_texts(part) for part in value]
        case _:
            return value


def to_json(value: Any, **options: Any) -> str:
    """Return JSON in valid UTF-8, for any names, without passwords in places.

    Args:
        value: What ``json.dumps`` takes.
    """
    text = json.dumps(value, **options)
    return without_secrets(json.dumps(valid_texts(value), **options) if _HALF in text else text)


def one_line(text: str) -> str:
    """Return an error's text on one line, of some hundred characters. Errors of Spark's have the
    stack of a JVM."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_OF_LINE else f"{line[:_MOST_OF_LINE]}..."


def printable(text: str) -> str:
    """Return text for a person: ``escaped``, without passwords of its URLs."""
    return escaped(without_secrets(text))


def escaped(text: str) -> str:
    r"""Return text with all unsafe or unprintable characters escaped.

    A terminal would obey them, or could not show them.

    A topic name, a key or an error text may hold control characters, colour sequences or halves
    of characters; these become ``\xNN`` and the like. Line ends and tabs are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _spelled(character) for character in text
    )


def readable_bytes(data: bytes, *, limit: int) -> str:
    """Return bytes as readable text: UTF-8, else escapes.

    Args:
        limit: How many of them to show at most; a shortened text ends in ``...``.
    """
    shown = data[:limit].decode("utf-8", "backslashreplace")
    return escaped(shown) + ("..." if len(data) > limit else "")


def _spell_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    is_byte = _FIRST_BYTE <= code <= _LAST_BYTE
    return f"\\x{code - 0xDC00:02x}" if is_byte else f"\\u{code:04x}"


def _spelled(character: str) -> str:
    if _NO_TEXT.match(character):
        return valid_text(character)
    return character.encode("unicode_escape").decode("ascii")


def describe_unexpected(error: BaseException) -> str:
    """Return a one-line message for an unexpected error, with what to do."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]
    if isinstance(error, ImportError):
        return f"{text}: a library is missing or broken: pip install --force-reinstall pylog-spark"
    return f"unexpected {text}: this is a bug; `pylog --debug ...` shows where it is"
