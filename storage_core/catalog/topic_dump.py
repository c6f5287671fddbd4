"""Configs of topics as somebody exported them from a cluster, for directories without its metadata.

Either JSON of our own, or what Apache Kafka's own tool prints::

    {"format": "pylog-topics", "version": 1, "taken_ms": 1767355200000,
     "topics": {"orders": {"cleanup.policy": "compact", "retention.ms": "-1"}}}

    $ kafka-configs.sh --bootstrap-server HOST:9092 --describe --entity-type topics --all
    All configs for topic orders are:
      cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, DEFAULT_CONFIG:log.cleanup.policy=delete}
      ...

With ``--all`` there is a line a key, with the value in force, wherever the cluster has it from;
without, the heading begins with "Dynamic" and only the topic's own settings follow. What a topic
has in force is what counts here: nothing else knows the settings of a cluster's brokers.
Source of the text: ``org.apache.kafka.tools.ConfigCommand`` (Kafka 2.5 to 4.4).
"""  # noqa: E501  # a line of Kafka's

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.values import render
from storage_core.errors import CheckpointError, InvalidNameError
from storage_core.filenames import validate_topic

# All settings of 20,000 topics as the tool prints them.
MAX_DUMP_BYTES: Final = 256 * 1024 * 1024
_FORMAT: Final = "pylog-topics"
_VERSION: Final = 1
_FIELDS: Final = frozenset({"format", "version", "taken_ms", "topics"})
_LATEST_MS: Final = 253_402_300_799_999
_SHOWN: Final = 80

_HEADING: Final = re.compile(r"(?:All|Dynamic) configs for topic (?P<topic>\S+) are:")
_SETTING: Final = re.compile(
    r"  (?P<key>[^\s=]+)=(?P<value>.*?) sensitive=(?:true|false) synonyms=\{.*\}"
)
# What Java prints for no value: none is set, or it is kept secret.
_NO_VALUE: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDump:
    """What was exported of a cluster's topics.

    Attributes:
        file: Where it stands.
        taken_ms: When it was exported, epoch milliseconds: as it says itself, else when the file
            was written.
        topics: Settings of each topic that Kafka 4.4 knows; equal ones are one object.
        ignored_keys: Names of other settings, by topic, sorted.
    """

    file: str
    taken_ms: int
    topics: Mapping[str, Mapping[str, str]]
    ignored_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse_topic_dump(content: bytes, *, file: str, modified_ms: int) -> TopicDump:
    """Read exported configs of topics, JSON or the tool's text.

    Args:
        content: The file.
        file: Its name or path, for messages.
        modified_ms: When it was written, epoch milliseconds.

    Raises:
        CheckpointError: It is too large, malformed, or says something twice; with the line.
    """
    if len(content) > MAX_DUMP_BYTES:
        raise CheckpointError(file, 0, f"is larger than {MAX_DUMP_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CheckpointError(file, line, f"is no UTF-8: {error.reason}") from error
    if text.lstrip().startswith("{"):
        taken_ms, topics = _parse_json(text, file)
    else:
        taken_ms, topics = modified_ms, _parse_text(text, file)
    return _dump(topics, file=file, taken_ms=taken_ms)


def _parse_text(text: str, file: str) -> dict[str, dict[str, str]]:
    topics: dict[str, dict[str, str]] = {}
    settings: dict[str, str] | None = None
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        heading = _HEADING.fullmatch(line)
        found = None if heading else _SETTING.fullmatch(line)
        if heading is not None:
            topic = heading["topic"]
            _check_topic(topic, topics, file, number)
            settings = topics[topic] = {}
        elif found is None or settings is None:
            raise CheckpointError(
                file,
                number,
                'expected "All configs for topic NAME are:", or below it "  KEY=VALUE '
                f'sensitive=... synonyms={{...}}", found {line[:_SHOWN]!r}',
            )
        elif found["key"] in settings:
            raise CheckpointError(file, number, f"the key {found['key'][:_SHOWN]!r} stands twice")
        elif found["value"] != _NO_VALUE:
            settings[found["key"]] = found["value"]
    if not topics:
        raise CheckpointError(file, 0, "names no topic: expected what kafka-configs.sh prints")
    return topics


def _lines(text: str) -> Iterable[str]:
    # Not splitlines: a value may hold what Python, but nobody else, takes for the end of a line.
    return (line.removesuffix("\r") for line in text.split("\n"))


def _parse_json(text: str, file: str) -> tuple[int, dict[str, dict[str, str]]]:
    try:
        known = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise CheckpointError(file, error.lineno, f"is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, 0, f"is no JSON: {error}") from error
    if known.keys() != _FIELDS:
        names = ", ".join(sorted(_FIELDS ^ known.keys()))[:_SHOWN]
        raise CheckpointError(file, 0, f"has too few or too many fields: {names}")
    if (known["format"], known["version"]) != (_FORMAT, _VERSION):
        reason = f"expected format {_FORMAT} of version {_VERSION}"
        raise CheckpointError(file, 0, reason)
    taken_ms = known["taken_ms"]
    if type(taken_ms) is not int or not 0 <= taken_ms <= _LATEST_MS:
        raise CheckpointError(file, 0, "taken_ms: expected a time in epoch milliseconds")
    if not isinstance(known["topics"], dict):
        raise CheckpointError(file, 0, "topics: expected an object, topics by name")
    topics: dict[str, dict[str, str]] = {}
    for topic, settings in known["topics"].items():
        _check_topic(topic, topics, file, 0)
        topics[topic] = _texts(topic, settings, file)
    return taken_ms, topics


def _texts(topic: str, settings: object, file: str) -> dict[str, str]:
    if not isinstance(settings, dict):
        raise CheckpointError(file, 0, f"topics.{topic}: expected an object, settings by key")
    for key, value in settings.items():
        if not isinstance(value, str | int):
            place = f"topics.{topic}.{key[:_SHOWN]}"
            raise CheckpointError(file, 0, f"{place}: expected a text, a whole number or a truth")
    return {key: render(value) for key, value in settings.items()}


def _check_topic(topic: str, known: Mapping[str, object], file: str, line: int) -> None:
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise CheckpointError(file, line, f"{topic[:_SHOWN]!r}: {error.reason}") from error
    if topic in known:
        raise CheckpointError(file, line, f"the topic {topic} stands twice")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the name {twice[:_SHOWN]!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no value")


def _dump(topics: Mapping[str, Mapping[str, str]], *, file: str, taken_ms: int) -> TopicDump:
    """Keep what Kafka 4.4 knows; with all settings of many topics, most of them are the same."""
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    kept: dict[str, Mapping[str, str]] = {}
    ignored: dict[str, tuple[str, ...]] = {}
    for topic, settings in topics.items():
        entries = tuple(sorted(item for item in settings.items() if item[0] in TOPIC_KEYS))
        kept[topic] = shared.setdefault(entries, dict(entries))
        others = tuple(sorted(settings.keys() - TOPIC_KEYS.keys()))
        if others:
            ignored[topic] = others
    return TopicDump(file=file, taken_ms=taken_ms, topics=kept, ignored_keys=ignored)
