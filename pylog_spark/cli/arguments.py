"""Numbers on the command line, bounded as their fields in the files are."""

from typing import Final

import typer

from storage_core.filenames import MAX_OFFSET

_MAX_INT32: Final = 2**31 - 1


def parse_offset(text: str) -> int:
    """Read an offset or a point in time: a whole number of 63 bits, not negative."""
    return _whole_number(text, MAX_OFFSET)


def parse_size(text: str) -> int:
    """Read a count of bytes, not negative, as large as an array can be."""
    return _whole_number(text, _MAX_INT32)


def parse_factor(text: str) -> float:
    """Read a number between 0 and 1."""
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1:
        raise typer.BadParameter(f"expected a number between 0 and 1, found {text!r}")
    return factor


def _whole_number(text: str, largest: int) -> int:
    digits = str(text).strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits[:20]) > largest:
        raise typer.BadParameter(f"expected a whole number between 0 and {largest}, found {text!r}")
    return int(digits)
