"""The options of ``spark.read.format("kafka-log")``: names and meaning of Spark's Kafka source.

Spark hands over texts with names in any case. A name that means nothing is an error, but for
settings of a Kafka client (``kafka.bootstrap.servers`` ...), which a query that was written for a
broker may keep: there is no client here.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from storage_core.errors import ConfigError
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.json_text import parse_json
from storage_core.reading.request import EARLIEST, LATEST, Bound, ReadRequest, TopicChoice

_MAX_JSON_BYTES: Final = 16 << 20  # an offset for each of half a million partitions
_CLIENT_PREFIX: Final = "kafka."
_ISOLATION: Final = "kafka.isolation.level"
_NAMES: Final = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "failOnDataLoss",
    _ISOLATION,
    "columns",
    "view",
)
_VIEWS: Final = ("records",)
_PLAIN_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
)
_HEADERS: Final = "headers"


def parse_options(options: Mapping[str, str]) -> ReadRequest:
    """Read the options of a query.

    Args:
        options: As Spark gives them; names in any case.

    Raises:
        ConfigError: An option is unknown, malformed, or excludes another one.
    """
    texts = _canonical_names(options)
    path = texts.get("path")
    if not path:
        raise ConfigError("path", None, 'say what to read: .load("/path/to/log/directory")')
    view = texts.get("view", _VIEWS[0])
    if view not in _VIEWS:
        raise ConfigError("view", view, f"there is only: {', '.join(_VIEWS)}")
    return ReadRequest(
        paths=(path,),
        choice=_parse_choice(texts),
        starting=_parse_bound(texts, "starting", default="earliest", refused=LATEST),
        ending=_parse_bound(texts, "ending", default="latest", refused=EARLIEST),
        columns=_parse_columns(texts),
        fail_on_data_loss=_parse_boolean(texts, "failOnDataLoss", default=True),
        is_committed=_parse_isolation(texts),
    )


def _canonical_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their names as documented; Spark hands them over in lower case."""
    by_lower = {name.lower(): name for name in _NAMES}
    texts = {}
    for name, text in options.items():
        canonical = by_lower.get(name.lower())
        if canonical is not None:
            texts[canonical] = text
        elif not name.lower().startswith(_CLIENT_PREFIX):
            near = difflib.get_close_matches(name.lower(), by_lower, n=1)
            hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
            raise ConfigError(name, text, f"unknown option{hint}")
    return texts


def _parse_choice(texts: Mapping[str, str]) -> TopicChoice:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in texts]
    if len(ways) > 1:
        raise ConfigError(ways[1], texts[ways[1]], f"only one way to choose: {ways[0]} is set too")
    if not ways:
        return TopicChoice()
    text = texts[ways[0]]
    if ways[0] == "subscribe":
        names = frozenset(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise ConfigError("subscribe", text, "expected topics separated by commas")
        return TopicChoice(names=names, option="subscribe")
    if ways[0] == "subscribePattern":
        try:
            return TopicChoice(pattern=re.compile(text), option="subscribePattern")
        except re.error as error:
            raise ConfigError(
                "subscribePattern", text, f"no regular expression: {error}"
            ) from error
    return TopicChoice(assigned=frozenset(_parse_assign(text)), option="assign")


def _parse_assign(text: str) -> list[TopicPartition]:
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    partitions: list[TopicPartition] = []
    for topic, numbers in _parse_object("assign", text, example).items():
        if not isinstance(numbers, list):
            raise ConfigError("assign", text, f"expected JSON like {example}")
        partitions += [TopicPartition(topic, _whole(n, "assign", text, example)) for n in numbers]
    return partitions


def _parse_bound(texts: Mapping[str, str], end: str, *, default: str, refused: int) -> Bound:
    timestamp, offsets = f"{end}Timestamp", f"{end}Offsets"
    if timestamp in texts:
        text = texts[timestamp].strip()
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MAX_OFFSET:
            raise ConfigError(timestamp, text, "expected epoch milliseconds")
        return Bound(timestamp_ms=int(text), option=timestamp)
    text = texts.get(offsets, default).strip()
    if text.lower() == default:
        return Bound()
    if text.lower() in {"earliest", "latest"}:
        raise ConfigError(offsets, text, f"a batch query takes {default} or JSON here")
    return Bound(offsets=_parse_offsets(offsets, text, refused), option=offsets)


def _parse_offsets(name: str, text: str, refused: int) -> dict[TopicPartition, int]:
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    offsets = {}
    for topic, of_topic in _parse_object(name, text, example).items():
        if not isinstance(of_topic, dict):
            raise ConfigError(name, text, f"expected JSON like {example}")
        for number, offset in of_topic.items():
            partition = TopicPartition(topic, _whole(number, name, text, example))
            is_offset = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_offset or not EARLIEST <= offset <= MAX_OFFSET:
                raise ConfigError(name, text, f"{partition}: {offset!r} is no offset")
            if offset == refused:
                word = "latest" if refused == LATEST else "earliest"
                raise ConfigError(name, text, f"{partition}: {offset} ({word}) is not allowed here")
            offsets[partition] = offset
    return offsets


def _parse_object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = parse_json(text, limit_bytes=_MAX_JSON_BYTES)
    except ValueError as error:
        raise ConfigError(name, text, f"expected JSON like {example}: {error}") from error
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(name, text, f"expected JSON like {example}")
    return parsed


def _whole(number: object, name: str, text: str, example: str) -> int:
    digits = str(number)
    if isinstance(number, bool) or not re.fullmatch(r"[0-9]{1,10}", digits):
        raise ConfigError(name, text, f"{number!r} is no partition; expected JSON like {example}")
    return int(digits)


def _parse_columns(texts: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _parse_boolean(texts, "includeHeaders", default=False)
    everything = (*_PLAIN_COLUMNS, _HEADERS)
    if "columns" not in texts:
        return everything if with_headers else _PLAIN_COLUMNS
    by_lower = {name.lower(): name for name in everything}
    asked = [name.strip() for name in texts["columns"].split(",") if name.strip()]
    unknown = [name for name in asked if name.lower() not in by_lower]
    if unknown or not asked:
        there = ", ".join(everything)
        raise ConfigError("columns", texts["columns"], f"expected names from: {there}")
    return tuple(dict.fromkeys(by_lower[name.lower()] for name in asked))


def _parse_boolean(texts: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = texts.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigError(name, texts[name], "expected true or false")
    return text == "true"


def _parse_isolation(texts: Mapping[str, str]) -> bool:
    level = texts.get(_ISOLATION, "read_uncommitted").strip().lower()
    if level not in {"read_uncommitted", "read_committed"}:
        raise ConfigError(_ISOLATION, level, "expected read_uncommitted or read_committed")
    return level == "read_committed"
