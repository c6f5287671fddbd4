"""``pylog dump``: which files, in which order, and where the lines go."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from pylog_spark.cli.dump_lines import JsonLines, TextLines, internal_topic_of
from pylog_spark.cli.dump_segment import (
    DecodedBatches,
    DumpBounds,
    FileContent,
    dump_segment,
    parser_of,
)
from pylog_spark.cli.tiers import locate_tiers, tell_requests
from pylog_spark.cli.value_formats import key_format, value_format
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import refuse_raw, said_as
from pylog_spark.options.choices import BytesFormat, Isolation, OutputFormat
from pylog_spark.options.declared import (
    FROM,
    FULL,
    ISOLATION,
    MAX_RECORDS,
    OUTPUT,
    PARTITIONS,
    PATH,
    ROOTS,
    TOPIC,
    UNTIL,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.record_text import ValueFormat
from pylog_spark.text import printable
from storage_core.catalog.roles import local_path
from storage_core.clock import SystemClock
from storage_core.errors import (
    BadBytesError,
    ChangedWhileReadError,
    CheckpointError,
    ConfigError,
    ObjectNotFoundError,
    PartitionNotFoundError,
)
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    LOG_SUFFIX,
    MAX_OFFSET,
    offset_of,
    parse_cluster_snapshot,
    settled_name,
)
from storage_core.log.committed_view import (
    CommittedView,
    load_committed_view,
    scan_batch_tables,
)
from storage_core.log.settled_store import SettledStore, settle
from storage_core.roots.open_root import locate_directory
from storage_core.store import LogStore, open_store
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.open_objects import names_manifest
from storage_core.store.open_store import join_location, split_location

# A snapshot of the cluster's metadata is no part of a log, and made of what was committed.
_ALL_COMMITTED: Final = CommittedView(aborted=(), last_stable_offset=MAX_OFFSET)
# Lines are gathered to this many characters before they are written.
_CHUNK_CHARACTERS: Final = 1 << 16


class FileLines(Protocol):
    """Formats the content of one file as lines with line ends."""

    def lines(self, content: FileContent) -> Iterator[str]:
        """Yield output lines for batches, a tail, an entry or an error. The lines of batches
        include their records."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """What a dump shows of each file, and how."""

    as_json: bool = False  # JSON lines instead of text
    committed_only: bool = False  # leave out records that a committed read does not see
    # First offset, below zero so many before the end, or a time; None for the beginning.
    start: int | datetime | None = None
    end: int | datetime | None = None  # where to end, exclusive, likewise; None for the end
    most: int | None = None  # how many records, or entries of a file without records; None for all
    is_full: bool = False  # whether texts have whole keys and values
    keys: ValueFormat | None = None  # how keys are written; None for text, and Base64 in JSON
    values: ValueFormat | None = None

    def lines_of(self, file: str, topic: str | None) -> FileLines:
        """Return what formats a file. The topic is an internal one, or None."""
        default = BytesFormat.BASE64 if self.as_json else BytesFormat.TEXT
        keys, values = self.keys or default, self.values or default
        if self.as_json:
            return JsonLines(file, topic, keys=keys, values=values)
        return TextLines(file, topic, keys=keys, values=values, is_full=self.is_full)


def dump(line: CommandLine) -> int:
    """Dump a file or a partition directory; return the exit status."""
    (path,) = locate_tiers(line, [line[PATH]])
    if TOPIC in line:
        line = line.with_written({ROOTS: [path]})
    refuse_raw(line, "a dump has lines: text, hex, base64 or json; `pylog cat` writes raw bytes")
    request = DumpRequest(
        as_json=line[OUTPUT] is OutputFormat.JSON,
        committed_only=line[ISOLATION] is Isolation.READ_COMMITTED,
        start=line[FROM],
        end=line[UNTIL],
        most=line[MAX_RECORDS],
        is_full=line[FULL],
        keys=key_format(line),
        values=value_format(line),
    )
    if TOPIC in line:
        from pylog_spark.cli.record_choice import locate_partition  # noqa: PLC0415  # Arrow

        topics = dict.fromkeys(line[TOPIC])
        if len(topics) > 1:
            raise ConfigError(TOPIC.label, ", ".join(topics), "expected one topic: one is printed")
        path = locate_partition(path, next(iter(topics)), line[PARTITIONS])
    is_whole = dump_path(path, request)
    tell_requests([path])
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def dump_path(path: str | Path, request: DumpRequest) -> bool:
    """Write a file's content to stdout, or that of a directory's files. The directory is a
    partition's; its files come by name.

    Args:
        path: The file or directory; a path or a URL.

    Returns:
        Whether everything could be read and every checksum was right.
    """
    with said_as("PATH", path):
        store, names = _choose_files(str(path))
    _tell_of_renamed(store)
    segments = [name for name in names if is_segment(name)]
    committed = None
    if request.committed_only and segments:
        whole = store if isinstance(store, SettledStore) else settle(store)
        committed = load_committed_view(whole, now_ms=SystemClock().now_ms())
    bounds = _bounds(request, store, segments)
    if bounds.is_range and not segments:
        raise ConfigError("--from, --until", path, "holds no records to begin or to end with")
    if segments and (bounds.is_range or request.most is not None):
        names = _within(bounds, segments)
    problems = _Problems()
    parts: list[str] = []
    characters = 0
    for text in _texts(store, names, request, committed, bounds, problems):
        parts.append(text)
        characters += len(text)
        if characters >= _CHUNK_CHARACTERS:
            sys.stdout.write("".join(parts))
            parts.clear()
            characters = 0
    sys.stdout.write("".join(parts))
    problems.tell()
    return not problems.count


def _texts(
    store: LogStore,
    names: Iterable[str],
    request: DumpRequest,
    committed: CommittedView | None,
    bounds: DumpBounds,
    problems: "_Problems",
) -> Iterator[str]:
    """Yield the lines of files, and note their faults."""
    for name in names:
        if bounds.is_over:
            return
        lines = request.lines_of(name, internal_topic_of(store.location, name))
        try:
            for content in _contents(store, name, committed, bounds, problems):
                yield from lines.lines(content)
        except (ChangedWhileReadError, ObjectNotFoundError) as error:
            if not isinstance(store, SettledStore):
                raise
            gone = BadBytesError(name, 0, f"gone, or another file, since the listing: {error}")
            problems.add(gone.file, gone.position, gone.reason)
            yield from lines.lines(gone)


def _contents(
    store: LogStore,
    name: str,
    committed: CommittedView | None,
    bounds: DumpBounds,
    problems: "_Problems",
) -> Iterator[FileContent]:
    """Yield the contents of a file up to a read error. The error is yielded as well, as the last
    item."""
    if committed is not None and offset_of(name) is None:
        committed = _ALL_COMMITTED
    try:
        if is_segment(name):
            for content in dump_segment(store, name, committed, bounds):
                if isinstance(content, DecodedBatches):
                    for position, reason in content.wrong_checksums:
                        problems.add(name, position, reason)
                yield content
        parser = parser_of(settled_name(name))
        for entry in parser(store, name) if parser is not None else ():
            if not bounds.take_entry():
                break
            yield entry
    except BadBytesError as error:
        problems.add(error.file, error.position, error.reason)
        yield error
    except CheckpointError as error:
        reason = f"line {error.line}: {error.reason}" if error.line else error.reason
        problems.add(error.file, 0, reason)
        yield BadBytesError(error.file, 0, reason)


def _bounds(request: DumpRequest, store: LogStore, segments: Sequence[str]) -> DumpBounds:
    """Return the dump's bounds, with places from the end as offsets."""
    start, end = request.start, request.end
    if any(isinstance(place, int) and place < 0 for place in (start, end)):
        log_end = _end_offset(store, segments)
        start, end = (
            max(log_end + place, 0) if isinstance(place, int) and place < 0 else place
            for place in (start, end)
        )
    return DumpBounds(start, end, request.most)


def _end_offset(store: LogStore, segments: Sequence[str]) -> int:
    """Return the offset behind the last batch, 0 without batches."""
    for name in sorted(segments, key=lambda name: offset_of(name) or 0, reverse=True):
        end = 0
        for batches in scan_batch_tables(store, name):
            end = int(batches.last_offset[-1]) + 1
        if end:
            return end
    return 0


def _within(bounds: DumpBounds, segments: Sequence[str]) -> list[str]:
    """Return the segments with a possible part in the dump. A snapshot is always among them."""
    bases = [offset_of(name) for name in segments]
    following = [*bases[1:], None]
    return [
        name
        for name, base, after in zip(segments, bases, following, strict=True)
        if base is None or bounds.may_have(base, after)
    ]


def is_segment(name: str) -> bool:
    """Whether a file holds batches, also under a temporary name. A file on its way in or out
    holds them, too."""
    plain = settled_name(name)
    if plain == BOOTSTRAP_SNAPSHOT_FILE or parse_cluster_snapshot(plain) is not None:
        return True
    return plain.endswith(LOG_SUFFIX) and offset_of(name) is not None


class _Problems:
    """A count of faults, for one line on standard error. An output may be long."""

    def __init__(self) -> None:
        self.count = 0
        self._first = ""

    def add(self, file: str, position: int, what: str) -> None:
        """Take note of one; the first is described."""
        if not self.count:
            self._first = f"{file}: position {position}: {what}"
        self.count += 1

    def tell(self) -> None:
        """Say how many there were, and where the first of them is."""
        if self.count:
            places = "1 place is" if self.count == 1 else f"{self.count} places are"
            sys.stderr.write(f"pylog: {places} bad; the first: {printable(self._first)}\n")


def _choose_files(path: str) -> tuple[LogStore, list[str]]:
    """Return the store of a path, and its file names in order. They are shown in that order."""
    # Only partitions of managed roots have generations.
    local = None if names_manifest(path) or GENERATION_MARK in path else local_path(path)
    if local is not None and not local.is_dir():
        if _is_kafkas(local.name) and not local.is_file():
            return _choose_one(str(local.parent), local.name)
        if not local.is_file():
            raise ConfigError("PATH", path, "no such file or directory")
        if not _is_kafkas(local.name):
            raise ConfigError("PATH", path, "its name is none of a file that Kafka writes")
        # The person who names a link means what it leads to.
        target = local.resolve()
        if not _is_kafkas(target.name):
            reason = f"is a link to {target}, whose name is none of a file that Kafka writes"
            raise ConfigError("PATH", path, reason)
        return open_store(str(target.parent)), [target.name]
    parent, name = split_location(path)
    if local is None and _is_kafkas(name):
        return _choose_one(parent, name)
    store = settle(open_store(locate_directory(path)))
    names = [
        file.name
        for file in store.list_files()
        if settled_name(file.name) == file.name and _is_kafkas(file.name)
    ]
    if not names:
        raise ConfigError("PATH", path, "the directory holds no file of a Kafka log")
    return store, names


def _tell_of_renamed(store: LogStore) -> None:
    """Name the files with a later name in the dump. It shows them under names that they do not
    have yet."""
    if not isinstance(store, SettledStore):
        return
    renamed = [f"{file.name} as {name}" for name, file in store.files.items() if file.name != name]
    if renamed:
        sys.stderr.write(
            "pylog: a swap is not finished; its files are shown as a load would leave them: "
            f"{printable(', '.join(sorted(renamed)))}\n"
        )


def _choose_one(directory: str, name: str) -> tuple[LogStore, list[str]]:
    """Return a single file of an object store or managed root."""
    try:
        store = open_store(locate_directory(directory))
        if any(file.name == name for file in store.list_files()):
            return store, [name]
    except PartitionNotFoundError:
        pass
    raise ConfigError("PATH", join_location(directory, name), "no such file or directory")


def _is_kafkas(name: str) -> bool:
    return is_segment(name) or parser_of(settled_name(name)) is not None
