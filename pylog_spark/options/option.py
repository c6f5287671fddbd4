"""An option: names, written form, value, and help.

``declared`` has every option, once, each as one of these. The command line and its help, YAML
files, ``pylog config show`` and the values of a run come from there.
"""

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage_core.catalog.release_features import Release, find_release
from storage_core.catalog.roles import local_path
from storage_core.clock import SystemClock
from storage_core.errors import CheckpointError, ConfigError, InvalidNameError
from storage_core.filenames import MAX_OFFSET, validate_topic

if TYPE_CHECKING:
    from storage_core.catalog.topic_dump import TopicDump


T_co = TypeVar("T_co", covariant=True)

# Of an option that a command line or a clock has to say.
NO_DEFAULT: Final = object()
_METADATA_KEY: Final = "pylog_spark.options"


class Shape(enum.Enum):
    """How YAML writes a value."""

    PLAIN = enum.auto()
    AMOUNT = enum.auto()  # a text; a number stands for its text, with or without a unit
    ENTRIES = enum.auto()  # a mapping whose entries win one by one over those of a weaker layer
    ENTRIES_BY_NAME = enum.auto()  # a mapping of such mappings, whose names win one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The written form of an option's values, and its reader."""

    written: Any  # type on the command line: str, int, bool, Path, an enumeration, a list of texts
    in_file: Any = None  # type in YAML
    shape: Shape = Shape.PLAIN  # how YAML writes it
    # Makes the value of what is written; it gets the option's name first, for errors.
    read: Callable[[str, Any], Any] = lambda _, value: value
    # Reads a text of the command line before all else; its ValueError is for a person.
    parse: Callable[[str], Any] | None = None
    # Smallest number on the command line; None where ``read`` or ``parse`` looks.
    at_least: int | None = None
    may_be_empty: bool = False  # an empty text says as little as none

    @property
    def is_mapping(self) -> bool:
        """Whether it has entries, each with an origin of its own."""
        return self.shape in {Shape.ENTRIES, Shape.ENTRIES_BY_NAME}


@dataclass(frozen=True, kw_only=True)  # no slots: ``Option[int](...)`` sets an attribute
class Option(Generic[T_co]):
    """One option, or one argument."""

    name: str
    kind: Kind
    # Its value where nobody says one; NO_DEFAULT where somebody has to.
    default: T_co | Any = NO_DEFAULT
    # On the command line; None for an argument, and for what only files may say.
    flag: str | None = None
    short: str | None = None  # one letter for the flag, with its dash; None for most
    metavar: str | None = None  # the placeholder of its value in the help
    help: str = ""  # its meaning, also in ``pylog config show`` if files may have it
    panel: str | None = None  # heading in the help; None for the options that say what is done
    says: bool = True  # A switch's value
    shown: Any = None  # the default in the help; None to show none
    is_required: bool = False  # whether a command line without it is wrong
    is_hidden: bool = False  # whether the help leaves it out
    is_in_files: bool = False  # whether ``--config`` files may have it
    # Its default as ``conf/defaults.yaml`` has it; empty where that is its value.
    written_default: str = ""

    @property
    def label(self) -> str:
        """What an error calls it."""
        return self.flag or self.metavar or self.name

    def read(self, written: Any) -> T_co:
        """Return its value for what is written, its default for None."""
        if written is None or (self.kind.may_be_empty and not written):
            value: T_co = self.default
        else:
            value = self.kind.read(self.label, written)
        return value

    def field(self) -> T_co:
        """Declare the field of a dataclass that holds its value."""
        metadata = {_METADATA_KEY: self}
        if self.kind.is_mapping:
            empty: Any = dataclasses.field(default_factory=dict, metadata=metadata)
            return empty  # type: ignore[no-any-return]  # as dataclasses.field itself does
        default = MISSING if self.default is NO_DEFAULT else self.default
        field: Any = dataclasses.field(default=default, metadata=metadata)
        return field  # type: ignore[no-any-return]


def options_of(values: type) -> dict[str, Option[Any]]:
    """Return the options that a dataclass holds the values of, by field."""
    fields = dataclasses.fields(values)
    return {f.name: f.metadata[_METADATA_KEY] for f in fields if _METADATA_KEY in f.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the file of a place says: ``place`` reads it."""

    file: str
    values: Mapping[str, Any]  # by the option's name, as a command line would have them

    def without(self, option: Option[Any]) -> "Place":
        """Return it as if it said nothing of an option."""
        others = {name: value for name, value in self.values.items() if name != option.name}
        return Place(file=self.file, values=others)


class CommandLine:
    """What a command line has: options and arguments that somebody has written.

    Args:
        written: The given texts, by the option's name; None and an empty list mean that none is
            given.
        place: What the place says where nothing is written; None without such settings.
    """

    def __init__(self, written: Mapping[str, Any], place: Place | None = None) -> None:
        self.place = place
        self._written = {
            name: value for name, value in written.items() if value is not None and value != []
        }

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name in self._written

    def __getitem__(self, option: Option[T_co]) -> T_co:
        """Return the value of an option, else that of the place, else its default."""
        written = self.written(option)
        if written is None and self.place is not None:
            written = self.place.values.get(option.name)
        return option.read(written)

    def written(self, option: Option[Any]) -> Any:
        """Return an option's value as written, None without one."""
        return self._written.get(option.name)

    def with_switch(self, option: Option[bool]) -> "CommandLine":
        """Return the same command line with a switch."""
        return self.with_written({option: option.says})

    def with_written(self, values: Mapping[Option[Any], Any]) -> "CommandLine":
        """Return the same command line with other values of some options."""
        others = {option.name: value for option, value in values.items()}
        return CommandLine({**self._written, **others}, self.place)


# The kinds of options: texts, amounts, files, choices, switches.

_MAX_INT32: Final = 2**31 - 1
_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]*)")
_LARGEST: Final = 2**63 - 1
_OFFSET: Final = re.compile(r"-?[0-9]{1,19}")
_AGO: Final = re.compile(r"(-?)([0-9]{1,18}(?:\.[0-9]{1,6})?) ?([a-z]+)( ago)?", re.IGNORECASE)
# Seconds.
_AGO_UNITS: Final = {
    name: seconds
    for names, seconds in (
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hour hours", 3600),
        ("d day days", 86_400),
        ("w week weeks", 604_800),
    )
    for name in names.split()
}
_DAYS: Final = {"today": 0, "yesterday": 1}
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")


def parse_bytes(option: str, text: str) -> int:
    """Read an amount of bytes, with or without a unit: ``GiB``."""
    return _parse(option, text, _BYTES, "a number of bytes such as 1073741824 or 64GiB")


def parse_duration_ms(option: str, text: str) -> int:
    """Read a duration with its unit, such as ``90m``, and return milliseconds."""
    return _parse(option, text, _MILLISECONDS, "a duration such as 45s, 90m, 72h or 3d")


def parse_ratio(option: str, text: str) -> float:
    """Read a number between 0 and 1."""
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(option, text, "expected a number between 0 and 1")
    return ratio


def parse_position(option: str, text: str, now_ms: int | None = None) -> int | datetime:
    """Read a log position: an offset, a time, or a count back.

    Args:
        text: The value's text: ``4711``, ``-10``, ``2026-11-21T07:56:03Z``, ``yesterday``,
            ``today 08:00``, ``-90m``, ``2 hours ago``; a time of day, with or without a date, may
            have a zone behind it, as ``today 08:00 Europe/Berlin``. Without one it is in UTC, as
            all times that this program shows.
        now_ms: The moment that times ago are counted from; None for this one.

    Returns:
        An offset; below zero, how many offsets before the log's end; or a time with its zone.
    """
    expected = (
        "expected an offset, -N for N offsets before the end, or a time, such as "
        "2026-11-21T07:56, yesterday, 'today 08:00 Europe/Berlin', -90m or '2 days ago'"
    )
    words = text.strip()
    if _OFFSET.fullmatch(words):
        offset = int(words)
        if abs(offset) > _LARGEST:
            raise ConfigError(option, text, expected)
        return offset
    now = datetime.fromtimestamp((SystemClock().now_ms() if now_ms is None else now_ms) / 1000, UTC)
    if (ago := _AGO.fullmatch(words)) is not None:
        minus, amount, unit, word = ago.groups()
        if bool(minus) == bool(word) or unit.lower() not in _AGO_UNITS:
            raise ConfigError(option, text, expected)
        with suppress(OverflowError):  # before the year 1
            return now - timedelta(seconds=float(amount) * _AGO_UNITS[unit.lower()])
        raise ConfigError(option, text, expected)
    words, zone = _split_zone(option, words)
    day, _, clock = words.partition(" ")
    try:
        if day.lower() == "now" and not clock:
            return now
        if (days_ago := _DAYS.get(day.lower())) is not None:
            date = now.astimezone(zone).date() - timedelta(days=days_ago)
            return datetime.combine(date, time.fromisoformat(clock or "00:00"), tzinfo=zone)
        at = datetime.fromisoformat(words)
    except (ValueError, OverflowError):
        raise ConfigError(option, text, expected) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)


def _split_zone(option: str, words: str) -> tuple[str, tzinfo]:
    """Return a time and the zone whose name stands behind it, else UTC."""
    before, _, name = words.rpartition(" ")
    if not before or not _ZONE.fullmatch(name):
        return words, UTC
    try:
        return before, ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ConfigError(
            option,
            words,
            f"this machine knows no time zone {name!r}; expected UTC, "
            "Europe/Berlin, or a time with its distance, such as 2026-11-21T07:56+01:00",
        ) from None


def _parse(option: str, text: str, units: dict[str, int], expected: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    unit = None if match is None else units.get(match[2].lower())
    if match is None or unit is None:
        raise ConfigError(option, text, f"expected {expected}")
    amount = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if amount > _LARGEST:
        raise ConfigError(option, text, f"expected {expected}, at most {_LARGEST}")
    return amount


def choice(words: type[enum.StrEnum]) -> Kind:
    """Return the kind of an option that is one of some words."""
    return Kind(
        written=words,
        in_file=Literal[tuple(word.value for word in words)],
        read=lambda _, word: words(word),
    )


def whole_number(largest: int) -> Kind:
    """Return the kind of a bounded whole number, 0 or more. The bound is that of the option's
    field in files."""

    def parse(text: str) -> int:
        digits = str(text).strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits[:20]) > largest:
            raise ValueError(f"expected a whole number between 0 and {largest}, found {text!r}")
        return int(digits)

    return Kind(written=int, parse=parse)


def count(at_least: int) -> Kind:
    """Return the kind of a number of things."""

    def read(label: str, number: int) -> int:
        if number < at_least:
            raise ConfigError(label, number, f"expected at least {at_least}")
        return number

    return Kind(written=int, in_file=int, read=read, at_least=at_least)


def codes(values: Collection[str]) -> Kind:
    """Return the kind of an option that names some of these codes."""

    def read(label: str, names: Iterable[str]) -> frozenset[str]:
        unknown = sorted(set(names) - set(values))
        if unknown:
            raise ConfigError(label, unknown[0], f"expected {', '.join(values)}")
        return frozenset(names)

    return Kind(written=list[str], read=read)


def _amount(read: Any, *, may_be_empty: bool = False) -> Kind:
    return Kind(written=str, in_file=str, shape=Shape.AMOUNT, read=read, may_be_empty=may_be_empty)


def _read_http_url(label: str, text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigError(label, text, "expected http://HOST:PORT, or https://")
    if url.username or url.password:
        # Errors and ledgers repeat the text.
        raise ConfigError(label, text, "expected a URL without user and password")
    return text


def _read_folder(label: str, text: str) -> str:
    from storage_core.store.local import plain_path  # noqa: PLC0415  # NumPy, not for --help

    folder = local_path(text)
    if folder is None:
        raise ConfigError(
            label, text, "expected a folder of this machine; managed roots need no trash"
        )
    return str(plain_path(folder))


def _read_topic_dump(label: str, file: str | Path) -> "TopicDump":
    from storage_core.catalog.topic_dump import (  # noqa: PLC0415  # the help needs no topics
        MAX_DUMP_BYTES,
        parse_topic_dump,
    )

    path = Path(file)
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_DUMP_BYTES + 1)
            modified_ms = os.fstat(opened.fileno()).st_mtime_ns // 1_000_000
        return parse_topic_dump(data, file=str(path), modified_ms=modified_ms)
    except OSError as error:
        raise ConfigError(label, path, error.strerror or str(error)) from error
    except CheckpointError as error:
        raise ConfigError(label, path, str(error)) from error


def _is_node_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= _MAX_INT32


def _read_number_list(label: str, text: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(map(_is_node_id, numbers)):
        raise ConfigError(label, text, "expected node ids with commas between: 2,3")
    if len(set(map(int, numbers))) < len(numbers):
        raise ConfigError(label, text, "expected each node id once")
    return tuple(map(int, numbers))


def _read_folders_of_nodes(label: str, texts: Iterable[str]) -> dict[int, Path]:
    folders: dict[int, Path] = {}
    for text in texts:
        node, _, folder = text.partition("=")
        if not _is_node_id(node) or not folder:
            raise ConfigError(label, text, "expected a node id and a folder: 3=/var/lib/kafka")
        if int(node) in folders:
            raise ConfigError(label, text, "expected each node id once")
        folders[int(node)] = Path(folder).absolute()
    return folders


def _read_topic_names(label: str, texts: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        try:
            validate_topic(new)
        except InvalidNameError as error:
            raise ConfigError(label, text, f"expected OLD=NEW, names of topics: {error}") from error
        if old in names:
            raise ConfigError(label, text, "expected each topic once")
        names[old] = new
    return names


def _read_release(label: str, text: str) -> Release:
    try:
        return find_release(text)
    except ValueError as error:
        raise ConfigError(label, text, str(error)) from error


def _parse_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor <= 1:
        raise ValueError(f"expected a number between 0 and 1, found {text!r}")
    return factor


TEXT: Final = Kind(written=str, in_file=str)
# A list in a file replaces the whole list of a weaker layer.
TEXTS: Final = Kind(written=list[str], in_file=list[str], read=lambda _, texts: tuple(texts))
SWITCH: Final = Kind(written=bool, in_file=bool)
# An offset, or a point in time: 63 bits.
OFFSET: Final = whole_number(MAX_OFFSET)
# A number of bytes, at most the largest size of an array.
ARRAY_SIZE: Final = whole_number(_MAX_INT32)
# Between 0 and 1.
FACTOR: Final = Kind(written=float, parse=_parse_factor)
BYTES: Final = _amount(parse_bytes, may_be_empty=True)
DURATION: Final = _amount(parse_duration_ms)
DURATION_OR_NONE: Final = _amount(parse_duration_ms, may_be_empty=True)
RATIO: Final = _amount(parse_ratio)
# An offset, one counted from the log's end, or a time.
POSITION: Final = Kind(written=str, read=parse_position)
# Numbers with commas between, each once: ``2,3``.
NUMBER_LIST: Final = Kind(written=str, read=_read_number_list)
# ``NODE=FOLDER`` texts, each node once.
FOLDERS_OF_NODES: Final = Kind(written=list[str], read=_read_folders_of_nodes)
# A release of Kafka, such as ``4.4``.
RELEASE: Final = Kind(written=str, read=_read_release)
# ``OLD=NEW`` texts, each old topic once.
TOPIC_NAMES: Final = Kind(written=list[str], read=_read_topic_names)
NUMBERS: Final = Kind(written=list[int], read=lambda _, numbers: tuple(numbers))
# A file, in a YAML file relative to that.
FILE: Final = Kind(written=Path, in_file=str)
FILES: Final = Kind(written=list[Path], read=lambda _, files: tuple(files))
# A file that is written; relative paths are taken where the program was started.
NEW_FILE: Final = Kind(written=Path, read=lambda _, file: str(file.absolute()))
TOPIC_DUMP_FILE: Final = Kind(written=Path, in_file=str, read=_read_topic_dump)
HTTP_URL: Final = Kind(written=str, read=_read_http_url)
# An absolute path without ``..``.
TRASH_FOLDER: Final = Kind(written=str, in_file=str, read=_read_folder, may_be_empty=True)
# ``KEY=VALUE`` texts on the command line.
SETTINGS: Final = Kind(
    written=list[str],
    in_file=dict[str, str],
    shape=Shape.ENTRIES,
    read=lambda _, texts: tuple(texts),
)
ENTRIES: Final = Kind(written=None, in_file=dict[str, str], shape=Shape.ENTRIES)
ENTRIES_BY_NAME: Final = Kind(
    written=None, in_file=dict[str, dict[str, str]], shape=Shape.ENTRIES_BY_NAME
)
