"""The options of ``spark.read.format("kafka-log")``: names and meaning of Spark's Kafka source.

Spark hands over texts with names in any case. A name that means nothing is an error, but for what
concerns a Kafka client, or a stream in a query that is none (``kafka.bootstrap.servers`` ...): a
query that was written for a broker may keep it.
"""

import base64
import difflib
import glob
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pylog_spark.tasks.views import VIEWS, RangeView
from storage_core.catalog.roles import local_path
from storage_core.errors import ConfigError
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.json_values import parse_json
from storage_core.reading.ranges import COLUMN_TYPES, LOG_COLUMN, schema_of
from storage_core.reading.request import (
    DEFAULT_RANGE_BYTES,
    EARLIEST,
    LATEST,
    Bound,
    ReadRequest,
    TopicChoice,
)
from storage_core.roots.open_root import tiers_with

if TYPE_CHECKING:
    from storage_core.values.registry_columns import RegistryColumns

_MAX_JSON_BYTES: Final = 16 << 20  # enough for one offset for each of half a million partitions
_MAX_PATHS_BYTES: Final = 16 << 20
_ISOLATION: Final = "kafka.isolation.level"
_MAX_OFFSETS: Final = "maxOffsetsPerTrigger"
# Options of Spark's Kafka source without a meaning where there is no client, or no stream.
_CLIENT_PREFIXES: Final = ("kafka.", "kafkaconsumer.", "fetchoffset.")
_CLIENT_NAMES: Final = frozenset({"groupidprefix", "minoffsetspertrigger", "maxtriggerdelay"})
# A property of a catalog's table; Spark passes it when it creates one.
_TABLE_PROPERTY: Final = "provider"
_NAMES: Final = (
    "path",
    "paths",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "keys",
    "keysBase64",
    "includeHeaders",
    "includeLogColumns",
    "failOnDataLoss",
    _MAX_OFFSETS,
    _ISOLATION,
    "columns",
    "view",
    "withLocal",
    "decryptionKey",
    "topicId",
    *("keyFormat", "valueFormat", "readerSchema", "readerMessage", "schemas", "onError"),
)
RECORDS: Final = "records"
# Options that choose records have no meaning for other views.
_OF_RECORDS: Final = (
    *("keys", "keysBase64", "includeHeaders", "includeLogColumns", _ISOLATION),
    *("keyFormat", "valueFormat", "readerSchema", "readerMessage", "schemas", "onError"),
)
# Options that choose offsets have no meaning for views of files.
_OF_OFFSETS: Final = ("starting", "ending", "minPartitions", "maxRecords", "maxPartitionBytes")
# Words for offsets; the first is the default, as in Spark's Kafka source.
_BATCH_STARTS: Final = {"earliest": Bound()}
_STREAM_STARTS: Final = {
    "latest": Bound(offsets=LATEST, option="startingOffsets"),
    "earliest": Bound(),
}
_ENDS: Final = {"latest": Bound()}
_UNITS: Final = {
    unit: shift
    for letter, shift in {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}.items()
    for unit in (letter, f"{letter}b")
}
# What ``kafka_log`` calls options of columns by a registry's schemas.
_DECODING: Final = {
    "key_format": "keyFormat",
    "value_format": "valueFormat",
    "reader_schema": "readerSchema",
    "reader_message": "readerMessage",
    "schemas": "schemas",
    "on_error": "onError",
}
_HEADERS: Final = "headers"
PLAIN_COLUMNS: Final = tuple(name for name in COLUMN_TYPES if name != _HEADERS)

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query asks for."""

    request: ReadRequest
    view: str
    columns: tuple[str, ...]  # names of the columns of the view, in order
    # How many tasks there shall be at least, as far as the files can be cut; None for as few as
    # there are.
    min_partitions: int | None
    # How many offsets a trigger of a stream reads; None for all.
    max_offsets_per_trigger: int | None
    without_meaning: tuple[str, ...]
    typed: "RegistryColumns | None" = None  # what makes columns of keys and values

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        if self.typed is not None:
            from pylog_spark.source.typed_columns import spark_schema  # noqa: PLC0415  # if asked

            return spark_schema(self.typed.schema(schema_of(self.columns)))
        if self.view == RECORDS:
            return schema_of(self.columns)
        whole = VIEWS[self.view].schema
        return pa.schema([whole.field(name) for name in self.columns])


def parse_options(
    options: Mapping[str, str],
    *,
    max_partition_bytes: int = DEFAULT_RANGE_BYTES,
    is_stream: bool = False,
) -> SourceOptions:
    """Read the options of a query.

    Args:
        options: Options as Spark passes them, with names in any case.
        max_partition_bytes: How much of the files a task reads where the options do not say it.
        is_stream: Whether it is a stream: it begins at the logs' end unless told, and has no end.

    Raises:
        ConfigError: An option is unknown, malformed, or excludes another one.
    """
    texts, without_meaning = canonical_names(options, _NAMES)
    view = _parse_view(texts, is_stream=is_stream)
    columns = _parse_columns(texts, view)
    if "maxPartitionBytes" in texts:
        max_partition_bytes = parse_spark_bytes("maxPartitionBytes", texts["maxPartitionBytes"])
    if is_stream:
        ends = [name for name in texts if name.startswith("ending")]
        if ends:
            raise ConfigError(ends[0], texts[ends[0]], "a stream has no end; a batch query has one")
    elif _MAX_OFFSETS in texts:
        without_meaning = tuple(sorted((*without_meaning, _MAX_OFFSETS)))
    paths, choice = _parse_paths(texts), _parse_choice(texts)
    typed = _parse_decoding(texts, paths, choice)
    needed = columns if typed is None else typed.needed(columns)
    request = ReadRequest(
        paths=paths,
        choice=choice,
        starting=(
            _parse_bound(texts, "starting", words=_STREAM_STARTS)
            if is_stream
            else _parse_bound(texts, "starting", words=_BATCH_STARTS, refused=LATEST)
        ),
        ending=_parse_bound(texts, "ending", words=_ENDS, refused=EARLIEST),
        columns=needed if view == RECORDS else (),
        keys=_parse_keys(texts),
        fail_on_data_loss=_parse_boolean(texts, "failOnDataLoss", default=True),
        is_committed=_parse_isolation(texts),
        range_bytes=max_partition_bytes,
        range_offsets=_parse_count(texts, "maxRecordsPerPartition"),
    )
    return SourceOptions(
        request=request,
        view=view,
        columns=columns,
        min_partitions=_parse_count(texts, "minPartitions"),
        max_offsets_per_trigger=_parse_count(texts, _MAX_OFFSETS) if is_stream else None,
        without_meaning=without_meaning,
        typed=typed,
    )


def _parse_decoding(
    texts: Mapping[str, str], paths: Sequence[str], choice: TopicChoice
) -> "RegistryColumns | None":
    """Read how keys and values become columns; None where they stay bytes."""
    said = {option: name for option, name in _DECODING.items() if name in texts}
    if not said:
        return None
    # Only if it is asked for.
    from storage_core.kafka_log import Logs  # noqa: PLC0415
    from storage_core.values.registry_columns import OptionNames  # noqa: PLC0415

    values: dict[str, Any] = {option: texts[name].strip() for option, name in said.items()}
    number = values.get("reader_schema", "")
    if re.fullmatch(r"[0-9]{1,10}", number):
        values["reader_schema"] = int(number)
    return Logs(paths).registry_columns(
        choice,
        options=OptionNames(
            key="keyFormat",
            value="valueFormat",
            reader_schema="readerSchema",
            reader_message="readerMessage",
            on_error="onError",
        ),
        **values,
    )


def warn_of_meaningless(names: Sequence[str]) -> None:
    """Log the names of meaningless options in one line."""
    if names:
        _log.warning("kafka-log: options that mean nothing here: %s", ", ".join(names))


def parse_spark_bytes(option: str, text: str) -> int:
    """Read an amount of bytes in Spark's form: ``134217728``, ``128m``, ``128MB``. A unit is a
    power of 2^10: ``128MB`` is 128 times 2^20.

    Raises:
        ConfigError: It is no such amount, or zero.
    """
    match = re.fullmatch(r"([0-9]{1,18})([a-z]{0,2})", text.strip().lower())
    shift = None if match is None else _UNITS.get(match[2])
    amount = 0 if match is None or shift is None else int(match[1]) << shift
    if not 0 < amount <= MAX_OFFSET:
        raise ConfigError(option, text, "expected an amount of bytes such as 134217728 or 128m")
    return amount


def canonical_names(
    options: Mapping[str, str], names: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return options by documented names, and names without meaning.

    Args:
        options: Options as Spark passes them: in lower case.

    Raises:
        ConfigError: Some have no meaning, and are not those of a Kafka client either.
    """
    if _TABLE_PROPERTY in options:
        reason = (
            "Spark forgets the options of a table whose source is in Python; "
            "CREATE TEMPORARY VIEW ... USING `kafka-log` OPTIONS (...) keeps them"
        )
        raise ConfigError("CREATE TABLE", None, reason)
    by_lower = {name.lower(): name for name in names}
    texts: dict[str, str] = {}
    without_meaning: list[str] = []
    unknown: list[str] = []
    for name, text in options.items():
        lower = name.lower()
        if lower in by_lower:
            texts[by_lower[lower]] = text
        elif lower.startswith(_CLIENT_PREFIXES) or lower in _CLIENT_NAMES:
            without_meaning.append(name)
        else:
            near = difflib.get_close_matches(lower, by_lower, n=1)
            unknown.append(f"{name} (did you mean {by_lower[near[0]]}?)" if near else name)
    if unknown:
        reason = f"unknown; there are: {', '.join(names)}"
        raise ConfigError(", ".join(sorted(unknown)), None, reason)
    return texts, tuple(sorted(without_meaning))


def _parse_paths(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of ``load``: one, or several in Spark's JSON. Those of a tier say what it
    is read with."""
    asked = [texts["path"]] if texts.get("path") else []
    if "paths" in texts:
        asked += _parse_list("paths", texts["paths"])
    paths = tuple(dict.fromkeys(path for each in asked for path in _matches(each)))
    if not paths:
        raise ConfigError("path", None, 'say what to read: .load("/path/to/log/directory")')
    return tiers_with(
        paths,
        with_local=_one_or_list(texts, "withLocal"),
        decryption_key=texts.get("decryptionKey"),
        topic_ids=_one_or_list(texts, "topicId"),
    )


def _one_or_list(texts: Mapping[str, str], option: str) -> list[str]:
    text = texts.get(option, "[]")
    return _parse_list(option, text) if text.startswith("[") else [text]


def _parse_list(option: str, text: str) -> list[str]:
    try:
        several = parse_json(text, limit_bytes=_MAX_PATHS_BYTES)
    except ValueError as error:
        raise ConfigError(option, text, f"expected JSON: {error}") from error
    if not isinstance(several, list) or not all(isinstance(path, str) for path in several):
        raise ConfigError(option, text, 'expected JSON like ["/disk1", "/disk2"]')
    return several


def _matches(path: str) -> list[str]:
    """Return a pattern's local paths; any other path as it is."""
    local = local_path(path)
    if local is None or not glob.has_magic(str(local)) or local.exists():
        return [path]
    paths = sorted(glob.glob(str(local)))  # noqa: PTH207  # a pattern from the root on
    if not paths:
        raise ConfigError("path", path, "matches nothing")
    return paths


def _parse_keys(texts: Mapping[str, str]) -> frozenset[bytes | None] | None:
    keys: set[bytes] = set()
    for name in ("keys", "keysBase64"):
        if name not in texts:
            continue
        parts = texts[name].split(",")
        if not all(parts):
            raise ConfigError(name, texts[name], "expected keys separated by commas")
        if name == "keys":
            keys.update(part.encode() for part in parts)
            continue
        try:
            keys.update(base64.b64decode(part.strip(), validate=True) for part in parts)
        except ValueError as error:
            reason = f"expected keys in Base64, separated by commas: {error}"
            raise ConfigError(name, texts[name], reason) from error
    return frozenset(keys) if "keys" in texts or "keysBase64" in texts else None


def _parse_count(texts: Mapping[str, str], name: str) -> int | None:
    if name not in texts:
        return None
    text = texts[name].strip()
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise ConfigError(name, texts[name], "expected a number above 0")
    return int(text)


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


def _parse_bound(
    texts: Mapping[str, str], end: str, *, words: Mapping[str, Bound], refused: int | None = None
) -> Bound:
    """Read one end of the range: the first of time, times, offsets.

    Args:
        words: Words in place of offsets; the first one is the default.
        refused: LATEST or EARLIEST, where that cannot be said of a partition.
    """
    timestamp, timestamps, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    strategy = _parse_strategy(texts)
    if timestamp in texts:
        text = texts[timestamp].strip()
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MAX_OFFSET:
            raise ConfigError(timestamp, text, "expected epoch milliseconds")
        return Bound(timestamps_ms=int(text), is_past_end_allowed=strategy, option=timestamp)
    if timestamps in texts:
        by_partition = _parse_numbers(timestamps, texts[timestamps], "epoch milliseconds", least=0)
        return Bound(timestamps_ms=by_partition, is_past_end_allowed=strategy, option=timestamps)
    text = texts.get(offsets, next(iter(words))).strip()
    if text.lower() in words:
        return words[text.lower()]
    if text.lower() in {"earliest", "latest"}:
        raise ConfigError(offsets, text, f"a batch query takes {next(iter(words))} or JSON here")
    return Bound(offsets=_parse_offsets(offsets, text, refused), option=offsets)


def _parse_strategy(texts: Mapping[str, str]) -> bool:
    """Whether to read from the end without a record at the start. The strategy applies if no
    record is at or after the start."""
    name = "startingOffsetsByTimestampStrategy"
    text = texts.get(name, "error").strip().lower()
    if text not in {"error", "latest"}:
        raise ConfigError(name, texts[name], "expected error or latest")
    return text == "latest"


def _parse_offsets(name: str, text: str, refused: int | None) -> dict[TopicPartition, int]:
    offsets = _parse_numbers(name, text, "offset", least=EARLIEST)
    for partition, offset in offsets.items():
        if offset == refused:
            word = "latest" if refused == LATEST else "earliest"
            raise ConfigError(name, text, f"{partition}: {offset} ({word}) is not allowed here")
    return offsets


def _parse_numbers(name: str, text: str, what: str, *, least: int) -> dict[TopicPartition, int]:
    """Read a number for each of some partitions, in JSON."""
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    if least == 0:
        example = '{"topicA":{"0":1795200000000},"topicB":{"0":1795200000000}}'
    numbers = {}
    for topic, of_topic in _parse_object(name, text, example).items():
        if not isinstance(of_topic, dict):
            raise ConfigError(name, text, f"expected JSON like {example}")
        for number, value in of_topic.items():
            partition = TopicPartition(topic, _whole(number, name, text, example))
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not is_number or not least <= value <= MAX_OFFSET:
                raise ConfigError(name, text, f"{partition}: {value!r} is no {what}")
            numbers[partition] = value
    return numbers


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


def _parse_view(texts: Mapping[str, str], *, is_stream: bool) -> str:
    view = texts.get("view", RECORDS).strip().lower()
    names = (RECORDS, *VIEWS)
    if view not in names:
        raise ConfigError("view", texts["view"], f"there are: {', '.join(names)}")
    if view == RECORDS:
        return view
    if is_stream:
        raise ConfigError("view", view, f"a stream has {RECORDS} only")
    refused = _OF_RECORDS if isinstance(VIEWS[view], RangeView) else (*_OF_RECORDS, *_OF_OFFSETS)
    for name in texts:
        if name.startswith(refused):
            raise ConfigError(name, texts[name], f"means nothing in the view {view}")
    return view


def _parse_columns(texts: Mapping[str, str], view: str) -> tuple[str, ...]:
    """Read the columns of a query. Some record columns are returned only on request."""
    extra = {_HEADERS: "includeHeaders", LOG_COLUMN: "includeLogColumns"}
    everything = (*PLAIN_COLUMNS, *extra) if view == RECORDS else tuple(VIEWS[view].schema.names)
    if "columns" not in texts:
        included = [name for name, option in extra.items() if _parse_boolean(texts, option)]
        return (*PLAIN_COLUMNS, *included) if view == RECORDS else everything
    by_lower = {name.lower(): name for name in everything}
    asked = [name.strip() for name in texts["columns"].split(",") if name.strip()]
    unknown = [name for name in asked if name.lower() not in by_lower]
    if unknown or not asked:
        there = ", ".join(everything)
        raise ConfigError("columns", texts["columns"], f"expected names from: {there}")
    return tuple(dict.fromkeys(by_lower[name.lower()] for name in asked))


def _parse_boolean(texts: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    text = texts.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigError(name, texts[name], "expected true or false")
    return text == "true"


def _parse_isolation(texts: Mapping[str, str]) -> bool:
    level = texts.get(_ISOLATION, "read_uncommitted").strip().lower()
    if level not in {"read_uncommitted", "read_committed"}:
        raise ConfigError(_ISOLATION, level, "expected read_uncommitted or read_committed")
    return level == "read_committed"
