"""Values as a person reads them, safe for a terminal, a table or a log line."""

import datetime
from typing import Final

# Points in time that a calendar of four-digit years has: 1 January of year 1 to the end of 9999.
_FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999


def printable(text: str) -> str:
    r"""Return text with everything that a terminal would act upon, or could not show, escaped.

    A topic name, a key or an error text may hold control characters, colour sequences or halves
    of characters; these become ``\xNN`` and the like. Line ends and tabs are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def readable_bytes(data: bytes, *, limit: int) -> str:
    """Return bytes as a person reads them: UTF-8 where it is, the rest escaped.

    Args:
        data: The bytes.
        limit: How many of them to show at most; a shortened text ends in ``...``.
    """
    shown = data[:limit].decode("utf-8", "backslashreplace")
    return printable(shown) + ("..." if len(data) > limit else "")


def time_text(epoch_ms: int) -> str:
    """Return a point in time in UTC; the number itself where no calendar has it, or for -1."""
    if epoch_ms == -1 or not _FIRST_MS <= epoch_ms <= LAST_MS:
        return str(epoch_ms)
    whole, milliseconds = divmod(epoch_ms, 1000)
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=whole)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
