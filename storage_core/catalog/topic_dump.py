"""Read topic configs from a dump, for directories without cluster metadata.

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

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.values import render
from storage_core.errors import CheckpointError, InvalidNameError, ManifestError
from storage_core.filenames import validate_topic
from storage_core.json_values import OMITTED, JsonFile, MismatchError, whole

# All settings of 20,000 topics as the tool prints them.
MAX_DUMP_BYTES: Final = 256 * 1024 * 1024
_LATEST_MS: Final = 253_402_300_799_999
_SHOWN: Final = 80

_JSON: Final = re.compile(rb"\s*\{")
_HEADING: Final = re.compile(r"(?:All|Dynamic) configs for topic (?P<topic>\S+) are:")
_KEY: Final = re.compile(r"  (?P<key>[^\s=]+)=")
# After the value anything may follow, up to the brace at the line's end.
_SYNONYMS: Final = re.compile(r" sensitive=(?:true|false) synonyms=\{")
# Java prints this for no value: it is unset, or secret.
_NO_VALUE: Final = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDump:
    """The exported configs of a cluster's topics."""

    file: str
    # When it was exported, epoch milliseconds: as it says itself, else when the file was written.
    taken_ms: int
    # Settings of each topic that Kafka 4.4 knows; equal ones are one object.
    topics: Mapping[str, Mapping[str, str]]
    # Names of other settings, by topic, sorted.
    ignored_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Topics whose settings are not all the cluster's own: a person said some.
    second_hand: frozenset[str] = frozenset()


def parse_topic_dump(content: bytes, *, file: str, modified_ms: int) -> TopicDump:
    """Read exported configs of topics, JSON or the tool's text."""
    if len(content) > MAX_DUMP_BYTES:
        raise CheckpointError(file, 0, f"is larger than {MAX_DUMP_BYTES} bytes")
    content = content.removeprefix(codecs.BOM_UTF8)
    topics: Mapping[str, Mapping[str, str]]
    second_hand: tuple[str, ...] = ()
    if _JSON.match(content):
        with _malformed():
            document = _DUMP.parse(content, file)
        taken_ms, topics = document.taken_ms, document.topics
        second_hand = document.second_hand
        for topic in topics:
            _check_topic(topic, (), file, 0)
    else:
        taken_ms, topics = modified_ms, _parse_text(content, file)
    return replace(_dump(topics, file=file, taken_ms=taken_ms), second_hand=frozenset(second_hand))


def encode_topic_dump(
    topics: Mapping[str, Mapping[str, str]], *, taken_ms: int, second_hand: Collection[str]
) -> bytes:
    """Return configs of topics as JSON that ``parse_topic_dump`` reads."""
    in_order = {name: dict(sorted(topics[name].items())) for name in sorted(topics)}
    names = tuple(sorted(second_hand))
    return _DUMP.encode(_Document(taken_ms=taken_ms, topics=in_order, second_hand=names))


def _parse_text(content: bytes, file: str) -> dict[str, dict[str, str]]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(file, _line_of(error), f"is no UTF-8: {error.reason}") from error
    topics: dict[str, dict[str, str]] = {}
    settings: dict[str, str] | None = None
    # Not splitlines: a value may contain characters that end a line only for Python.
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        heading = _HEADING.fullmatch(line)
        setting = None if heading else _find_setting(line)
        if heading is not None:
            topic = heading["topic"]
            _check_topic(topic, topics, file, number)
            settings = topics[topic] = {}
        elif setting is None or settings is None:
            raise CheckpointError(
                file,
                number,
                'expected "All configs for topic NAME are:", or below it "  KEY=VALUE '
                f'sensitive=... synonyms={{...}}", found {line[:_SHOWN]!r}',
            )
        elif setting[0] in settings:
            raise CheckpointError(file, number, f"the key {setting[0][:_SHOWN]!r} stands twice")
        elif setting[1] != _NO_VALUE:
            settings[setting[0]] = setting[1]
    if not topics:
        raise CheckpointError(file, 0, "names no topic: expected what kafka-configs.sh prints")
    return topics


def _find_setting(line: str) -> tuple[str, str] | None:
    """Return a line's key and value, else None, in linear time."""
    key = _KEY.match(line)
    if key is None or not line.endswith("}"):
        return None
    synonyms = _SYNONYMS.search(line, key.end())
    return (key["key"], line[key.end() : synonyms.start()]) if synonyms else None


def _read_setting(value: object) -> str:
    if not isinstance(value, str | int):
        raise MismatchError("expected a text, a whole number or a truth")
    return render(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """Topic configs in JSON of our own, with their export time."""

    taken_ms: Annotated[int, whole(most=_LATEST_MS)]
    topics: Mapping[str, Mapping[str, Annotated[str, _read_setting]]]
    second_hand: Annotated[tuple[str, ...], OMITTED] = ()


_DUMP: Final = JsonFile(_Document, "pylog-topics")


@contextmanager
def _malformed() -> Iterator[None]:
    """Turn an error about JSON into the error of a small file."""
    try:
        yield
    except ManifestError as error:
        where = f"{error.field}: " if error.field else ""
        line = _line_of(error.__cause__)
        raise CheckpointError(error.file, line, f"{where}{error.reason}") from error


def _line_of(error: BaseException | None) -> int:
    """Return the 1-based line of a read error, 0 without one."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.count(b"\n", 0, error.start) + 1
    return error.lineno if isinstance(error, json.JSONDecodeError) else 0


def _check_topic(topic: str, topics: Collection[str], file: str, line: int) -> None:
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise CheckpointError(file, line, f"{topic[:_SHOWN]!r}: {error.reason}") from error
    if topic in topics:
        raise CheckpointError(file, line, f"the topic {topic} stands twice")


def _dump(topics: Mapping[str, Mapping[str, str]], *, file: str, taken_ms: int) -> TopicDump:
    """Keep the keys of Kafka 4.4, equal settings only once."""
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    configs: dict[str, Mapping[str, str]] = {}
    ignored: dict[str, tuple[str, ...]] = {}
    for topic, settings in topics.items():
        entries = tuple(sorted(item for item in settings.items() if item[0] in TOPIC_KEYS))
        configs[topic] = shared.setdefault(entries, dict(entries))
        others = tuple(sorted(settings.keys() - TOPIC_KEYS.keys()))
        if others:
            ignored[topic] = others
    return TopicDump(file=file, taken_ms=taken_ms, topics=configs, ignored_keys=ignored)
