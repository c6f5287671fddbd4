r"""The text form that Kafka's checkpoint files share.

::

    file    = "" | version \n [count \n entry*]
    version = 0
    count   = number of entries that follow
    entry   = fields separated by white space \n

A file that was just created is empty and holds no entries; one with only the version line holds
none either. An empty set is written ``0\n0\n``. The last newline may be missing, and white space
may follow an entry, but not precede it. Source: ``org.apache.kafka.server.common.CheckpointFile``.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Final

from storage_core.errors import CheckpointError

VERSION: Final = 0
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
# Ten times the partitions, or the leader epochs, that any broker has.
MAX_ENTRIES: Final = 1 << 21
# A line of ours has at most a topic name and two numbers; no more of it is worth repeating.
_QUOTED_CHARACTERS: Final = 200

# The white space of Java's regular expressions, and what its readers take for the end of a line.
_WHITE_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_LINE_END_BYTES: Final = re.compile(_LINE_END.pattern.encode())
_PIECE_BYTES: Final = 1 << 20
_FIRST_ENTRY_LINE: Final = 3
_NUMBER: Final = re.compile(r"[+-]?0*[0-9]{1,19}")
_MAX_NUMBER_LENGTH: Final = 64


def read_lines(data: bytes, *, file: str) -> list[str]:
    """Return the lines of a UTF-8 text without their ends; an empty last line is none.

    Raises:
        CheckpointError: The bytes are not UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckpointError(file, line, f"byte {error.start} is not UTF-8") from error
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    return lines


def parse_entries(data: bytes, *, file: str, field_count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the entries of a checkpoint, in file order.

    Args:
        data: The whole file.
        file: Its name, for errors.
        field_count: Fields that an entry has.

    Yields:
        The 1-based number of the entry's line, and its fields.

    Raises:
        CheckpointError: Another version, a version or count that is no number, an entry with
            another number of fields, another number of entries than announced, or more than
            MAX_ENTRIES.
    """
    _require_utf8(data, file=file)
    lines = _walk_lines(data)
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return
    version = parse_number(first, INT_MAX, file=file, line=1)
    if version != VERSION:
        raise CheckpointError(file, 1, f"expected version {VERSION}, found {version}")
    if second is None:
        return
    announced = parse_number(second, INT_MAX, file=file, line=2)
    count = 0
    for number, text in enumerate(lines, start=_FIRST_ENTRY_LINE):
        count = number - _FIRST_ENTRY_LINE + 1
        if count > MAX_ENTRIES:
            raise CheckpointError(file, number, f"expected at most {MAX_ENTRIES} entries")
        # One more than there may be, and what may be behind the last.
        fields = _WHITE_SPACE.split(text, maxsplit=field_count + 1)
        if len(fields) > 1 and not fields[-1]:
            fields.pop()
        if len(fields) != field_count or not fields[0]:
            raise CheckpointError(
                file, number, f"expected {field_count} fields, found {quote(text)}"
            )
        yield number, fields
    if announced != count:
        raise CheckpointError(file, 2, f"announces {announced} entries, found {count}")


def _require_utf8(data: bytes, *, file: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _PIECE_BYTES):
            decoder.decode(data[start : start + _PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        read_lines(data, file=file)  # says where


def _walk_lines(data: bytes) -> Iterator[str]:
    """Yield what ``read_lines`` returns, one at a time: a list of all takes ten times the file."""
    start = 0
    for end in _LINE_END_BYTES.finditer(data):
        yield data[start : end.start()].decode()
        start = end.end()
    if start < len(data):
        yield data[start:].decode()


def encode_entries(entries: Iterable[str]) -> bytes:
    """Return the bytes of a checkpoint with these entries, in this order."""
    lines = list(entries)
    return "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode("utf-8")


def parse_number(text: str, largest: int, *, file: str, line: int) -> int:
    """Parse a whole number of 32 or 64 bits, as Java does.

    Args:
        text: Digits, perhaps with a sign; nothing around them.
        largest: INT_MAX or LONG_MAX.
        file: Name of the file, for the error.
        line: 1-based line, for the error.

    Raises:
        CheckpointError: It is no number, or has more bits.
    """
    is_number = len(text) <= _MAX_NUMBER_LENGTH and _NUMBER.fullmatch(text)
    number = int(text) if is_number else None
    if number is None or not -largest - 1 <= number <= largest:
        bits = largest.bit_length() + 1
        raise CheckpointError(file, line, f"expected a number of {bits} bits, found {quote(text)}")
    return number


def quote(text: str) -> str:
    """Return a text of a file for an error message: escaped, and cut if it is long."""
    if len(text) > _QUOTED_CHARACTERS:
        return f"{text[:_QUOTED_CHARACTERS]!r}..."
    return repr(text)
