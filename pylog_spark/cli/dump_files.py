"""``pylog dump``: which files, in which order, and where the lines go."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from pylog_spark.cli.dump_entries import parser_of
from pylog_spark.cli.dump_internal import internal_topic_of
from pylog_spark.cli.dump_json import JsonLines
from pylog_spark.cli.dump_segment import DecodedBatches, TornTail, dump_segment
from pylog_spark.cli.dump_text import TextLines
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.choices import Isolation, OutputFormat
from pylog_spark.options.declared import ISOLATION, OUTPUT, PATH
from pylog_spark.options.option import CommandLine
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
from storage_core.log.committed_view import CommittedView, load_committed_view
from storage_core.log.settled_store import SettledStore, settle
from storage_core.roots.open_root import locate_directory
from storage_core.store import LogStore, open_store
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.open_objects import is_managed
from storage_core.store.open_store import join_location, split_location

# A snapshot of the cluster's metadata is no part of a log, and made of what was committed.
_ALL_COMMITTED: Final = CommittedView(aborted=(), last_stable_offset=MAX_OFFSET)
# Lines are gathered to this many characters before they are written.
_CHUNK_CHARACTERS: Final = 1 << 16


class LineWriter(Protocol):
    """How the content of one file becomes lines, each with its line end."""

    def batches(self, decoded: DecodedBatches) -> Iterator[str]:
        """Yield the lines of some batches and their records."""
        ...

    def tail(self, tail: TornTail) -> str:
        """Return the line of a torn tail."""
        ...

    def error(self, error: BadBytesError) -> str:
        """Return the line of what cannot be read, most often the end of the file."""
        ...

    def entry(self, kind: str, fields: dict[str, Any]) -> str:
        """Return the line of an entry of another kind of file."""
        ...


def dump(line: CommandLine) -> int:
    """Write the content of a file, or of a partition directory's files, for an exit status.

    Raises:
        PylogError: As ``dump_path``.
    """
    is_whole = dump_path(
        line[PATH],
        as_json=line[OUTPUT] is OutputFormat.JSON,
        committed_only=line[ISOLATION] is Isolation.READ_COMMITTED,
    )
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def dump_path(path: str | Path, *, as_json: bool, committed_only: bool) -> bool:
    """Write the content of a file, or of a partition directory's files by name, to stdout.

    Args:
        path: The file or directory; a path or a URL.
        as_json: JSON lines instead of text.
        committed_only: Leave out records that a committed read does not see.

    Returns:
        Whether everything could be read and every checksum was right.

    Raises:
        ConfigError: There is nothing there, or nothing that is Kafka's.
        InvalidNameError: A file of an unfinished swap belongs to no segment.
        ChangedWhileReadError: The one file is another one by now, or a directory does not stand
            still.
        StorageError: The disk failed.
    """
    with said_as("PATH", path):
        store, names = _choose_files(str(path))
    _tell_of_renamed(store)
    has_segment = any(is_segment(name) for name in names)
    committed = None
    if committed_only and has_segment:
        whole = store if isinstance(store, SettledStore) else settle(store)
        committed = load_committed_view(whole, now_ms=SystemClock().now_ms())
    output = _Output()
    problems = _Problems()
    for name in names:
        topic = internal_topic_of(store.location, name)
        lines = JsonLines(name, topic) if as_json else TextLines(name, topic)
        try:
            _dump_file(store, name, committed, lines, output, problems)
        except (ChangedWhileReadError, ObjectNotFoundError) as error:
            if not isinstance(store, SettledStore):
                raise
            gone = BadBytesError(name, 0, f"gone, or another file, since the listing: {error}")
            problems.add(gone.file, gone.position, gone.reason)
            output.write(lines.error(gone))
    output.flush()
    problems.tell()
    return not problems.count


def is_segment(name: str) -> bool:
    """Whether a file holds batches; one that is on its way in or out does too."""
    plain = settled_name(name)
    if plain == BOOTSTRAP_SNAPSHOT_FILE or parse_cluster_snapshot(plain) is not None:
        return True
    return plain.endswith(LOG_SUFFIX) and offset_of(name) is not None


class _Problems:
    """What is bad, counted, for one line on standard error: an output may be long."""

    def __init__(self) -> None:
        self.count = 0
        self._first = ""

    def add(self, file: str, position: int, what: str, *, count: int = 1) -> None:
        """Take note of some, of which the first is described."""
        if not self.count:
            self._first = f"{file}: position {position}: {what}"
        self.count += count

    def tell(self) -> None:
        """Say how many there were, and where the first of them is."""
        if self.count:
            places = "1 place is" if self.count == 1 else f"{self.count} places are"
            sys.stderr.write(f"pylog: {places} bad; the first: {printable(self._first)}\n")


class _Output:
    """Standard output, in large writes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._characters = 0

    def write(self, text: str) -> None:
        self._parts.append(text)
        self._characters += len(text)
        if self._characters >= _CHUNK_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        sys.stdout.write("".join(self._parts))
        self._parts.clear()
        self._characters = 0


def _choose_files(path: str) -> tuple[LogStore, list[str]]:
    """Return where the files are, and their names in the order in which they are shown."""
    # Only partitions of managed roots have generations.
    local = None if is_managed(path) or GENERATION_MARK in path else local_path(path)
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
    """Say which files of a directory are shown under names that they do not have yet."""
    if not isinstance(store, SettledStore):
        return
    renamed = [f"{file.name} as {name}" for name, file in store.files.items() if file.name != name]
    if renamed:
        sys.stderr.write(
            "pylog: a swap is not finished; its files are shown as a load would leave them: "
            f"{printable(', '.join(sorted(renamed)))}\n"
        )


def _choose_one(directory: str, name: str) -> tuple[LogStore, list[str]]:
    """Return a file that lies on an object store, or in a managed root."""
    try:
        store = open_store(locate_directory(directory))
        if any(file.name == name for file in store.list_files()):
            return store, [name]
    except PartitionNotFoundError:
        pass
    raise ConfigError("PATH", join_location(directory, name), "no such file or directory")


def _is_kafkas(name: str) -> bool:
    return is_segment(name) or parser_of(settled_name(name)) is not None


def _dump_file(
    store: LogStore,
    name: str,
    committed: CommittedView | None,
    lines: LineWriter,
    output: _Output,
    problems: _Problems,
) -> None:
    """Write the lines of one file, and take note of what is bad in it."""
    try:
        if is_segment(name):
            is_of_log = offset_of(name) is not None
            view = committed if committed is None or is_of_log else _ALL_COMMITTED
            for block in dump_segment(store, name, view):
                if isinstance(block, TornTail):
                    output.write(lines.tail(block))
                    continue
                if isinstance(block, BadBytesError):
                    output.write(lines.error(block))
                    continue
                for position, reason in block.wrong_checksums:
                    problems.add(name, position, reason)
                for text in lines.batches(block):
                    output.write(text)
        parser = parser_of(settled_name(name))
        for kind, fields in parser(store, name) if parser is not None else ():
            output.write(lines.entry(kind, fields))
    except BadBytesError as error:
        problems.add(error.file, error.position, error.reason)
        output.write(lines.error(error))
    except CheckpointError as error:
        reason = f"line {error.line}: {error.reason}" if error.line else error.reason
        problems.add(error.file, 0, reason)
        output.write(lines.error(BadBytesError(error.file, 0, reason)))
