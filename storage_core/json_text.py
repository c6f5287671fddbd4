"""Parse JSON, perhaps another user's, of bounded size and depth.

Python's parser calls itself for each level. How many it bears hangs on its version and on the
thread's stack: from 3.12 on a text of some thousand levels ends a process whose stack is small, or
was fenced off by a JVM, without an exception. Whatever is not of our own process's making is
parsed here.
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

MAX_JSON_DEPTH: Final = 64
# A double has at most 309 digits before its point; Kafka's and our numbers have at most 19.
MAX_NUMBER_DIGITS: Final = 400
_STRUCTURE: Final = b'"[]{}'
_OTHERS: Final = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # one level down, one up again
_STEPS_AT_ONCE: Final = 1 << 16
_STRING: Final = re.compile(rb'"[^"]*(?:"|\Z)')
MAX_INTEGER: Final = 2**63 - 1
# A bound for any text: a claim on a partition of many segments. Readers set tighter ones.
MAX_JSON_BYTES: Final = 1 << 30


def parse_json(content: bytes | str, *, limit_bytes: int, is_strict: bool = False) -> Any:
    """Parse UTF-8 JSON in time and memory linear in its length.

    Args:
        limit_bytes: The most that it may have.
        is_strict: Refuse what Python takes beyond JSON, or takes twice: ``NaN``, and a field that
            stands twice in an object.
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(data) > limit_bytes:
        raise ValueError(f"has {len(data)} bytes, more than the {limit_bytes} it may have")
    require_shallow(data)
    return json.loads(
        content if isinstance(content, str) else content.decode("utf-8"),
        object_pairs_hook=_unique if is_strict else None,
        parse_constant=_refuse_constant if is_strict else None,
        parse_int=_bounded(int),
        parse_float=_bounded(float),
    )


def require_shallow(data: bytes) -> None:
    """Raise ValueError if a JSON text nests deeper than MAX_JSON_DEPTH."""
    if _is_deeper(data, MAX_JSON_DEPTH):
        raise ValueError(f"is nested more than {MAX_JSON_DEPTH} levels deep")


def _is_deeper(data: bytes, limit: int) -> bool:
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    # Escapes first, from the left, as in a parser: the remaining quotes begin and end strings.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, _OTHERS).replace(b'""', b"")
    steps = memoryview(_STRING.sub(b"", structure).translate(_STEPS)).cast("b")
    level = 0
    for start in range(0, len(steps), _STEPS_AT_ONCE):
        levels = list(accumulate(steps[start : start + _STEPS_AT_ONCE], initial=level))
        if max(levels) > limit:
            return True
        level = levels[-1]
    return False


def _bounded(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if len(text) > MAX_NUMBER_DIGITS:
            raise ValueError(f"has a number of {len(text)} digits")
        return kind(text)

    return parse


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names: set[str] = set()
        twice = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"field {twice[:80]!r} occurs twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
