"""Steps of a command: arguments, options, early refusals, place, operation, answer.

The steps and their order are here, once; a ``Work`` says what a command does in each. What is heavy
is imported when a step needs it.
"""

import csv
import enum
import io
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import typer
from rich.console import Console

from pylog_spark.cli.error_text import leave_out_lost_connections, write_line
from pylog_spark.options.choices import EngineChoice, OutputFormat
from pylog_spark.options.declared import (
    EXCLUDE,
    METRICS_FILE,
    OUTPUT,
    PLAN_OUT,
    QUIET,
    REPORT,
    ROOTS,
    TOPICS,
    WIDE,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.report import error_text, json_line
from pylog_spark.report_page import write_page
from pylog_spark.text import escaped, printable, to_json
from pylog_spark.text_table import write_blocks
from pylog_spark.view import OutputLine, Row, View
from storage_core import interruption
from storage_core.catalog.log_directories import classify_directory
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_filter import TopicFilter, is_pattern, nearest_name, unmatched_globs
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError, PylogError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from pylog_spark.engines.choice import Local, Place
    from pylog_spark.options import JobOptions
    from pylog_spark.run.progress import Progress as JobProgress
    from storage_core.roots.open_root import LogRoot


# Rows of an answer for a program: JSON lines or CSV. JSON lines have all kinds of rows, CSV has
# one kind.
#
# CSV is that of RFC 4180, with one line of names. They are the keys of the JSON lines of that
# kind, and so are the values: counts of bytes and epoch milliseconds, nothing for null, ``true``
# and ``false``, JSON for what is a list or an object. Whoever opens CSV opens it in a spreadsheet,
# which takes a text for a formula that begins with ``=``, ``+``, ``-`` or ``@``; names and
# messages are those of files that somebody else wrote. Such a text gets an apostrophe in front.
# JSON has every text as it is.

# And as Chinese and Japanese keyboards write them, which spreadsheets take as well.
_FORMULA_STARTS: Final = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")


def _write(text: str) -> None:
    typer.echo(text, nl=False)


class RowLines:
    """Writes the rows of an answer, one after the other.

    Args:
        output: JSON or CSV.
        columns: Their names, in order: all of these rows have them.
    """

    def __init__(
        self,
        output: OutputFormat,
        kind: str,
        columns: Iterable[str],
        *,
        write: Callable[[str], object] = _write,
    ) -> None:
        self.is_csv = output is OutputFormat.CSV
        self._kind = kind
        self._columns = tuple(columns)
        self._write = write
        self._csv = csv.writer(SimpleNamespace(write=write))  # its line ends are those of the RFC
        if self.is_csv:
            self._csv.writerow(self._columns)

    def write(self, lines: Iterable[OutputLine | str]) -> None:
        """Write lines, and remarks between them to standard error. CSV leaves out lines of
        another kind; their errors are remarks."""
        for line in lines:
            if isinstance(line, str):
                write_line(line)
            elif not self.is_csv:
                self._write_json(line)
            elif line.kind == self._kind:
                cells = {name: _cell(value) for name, value in line.row.items()}
                cells |= {name: _data_cell(text) for name, text in line.data.items()}
                self._csv.writerow([cells[name] for name in self._columns])
            else:
                for text in _remarks(line.row):
                    write_line(text)

    def _write_json(self, line: OutputLine) -> None:
        text = json_line(line.kind, line.row)
        if line.items is None:
            more = "".join(f',"{name}":{value}' for name, value in line.data.items())
            self._write(f"{text[:-1]}{more}}}\n")
            return
        name, items = line.items
        # In a text every quote is escaped: this is the key, and nothing else.
        before, _, after = text.partition(f'"{name}":[]')
        self._write(f'{before}"{name}":[')
        for number, item in enumerate(items):
            self._write(f",{item}" if number else item)
        self._write(f"]{after}\n")


def _remarks(row: Row) -> Iterator[str]:
    """Yield a hidden row's errors and notes for a person."""
    place = row.get("directory") or row.get("root")
    before = f"{place}: " if place else ""
    if row.get("error") is not None:
        yield f"{before}{error_text(row)}"
    yield from (f"{before}{error}" for error in row.get("errors", ()))
    yield from row.get("notes", ())


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case Mapping() | list() | tuple():
            text = to_json(value, separators=(",", ":"), default=str)
        case _:
            text = printable(str(value))
    return _no_formula(text)


def _data_cell(text: str) -> str:
    """Return a JSON text's cell; for a string, its characters."""
    if text == "null":
        return ""
    return _no_formula(escaped(json.loads(text))) if text.startswith('"') else text


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


# Check that ``--topics`` and ``--exclude`` name what is there.
#
# A name that no topic has is a typo far more often than a wish. Where it would choose, the command
# is refused. Where it would leave out, it is refused if another name is near: what was to be
# spared would be worked on. A pattern that matches nothing is said, and so is the rest.

# So many roots are named in a sentence.
_NAMED_ROOTS: Final = 3


def check_topics(
    include: Sequence[str], exclude: Sequence[str], topics: Collection[str], roots: Sequence[str]
) -> tuple[str, ...]:
    """Return a line for each pattern that matches no topic."""
    where = ", ".join(roots[:_NAMED_ROOTS]) + (" and others" if len(roots) > _NAMED_ROOTS else "")
    notes = []
    for option, globs in ((TOPICS, include), (EXCLUDE, exclude)):
        for glob in unmatched_globs(globs, topics):
            near = None if is_pattern(glob) else nearest_name(glob, topics)
            if not is_pattern(glob) and (option is TOPICS or near is not None):
                meant = "" if near is None else f"; did you mean {near}?"
                reason = f"no such topic in {where}{meant} (a pattern may match none: '[{glob[0]}]"
                raise ConfigError(option.label, glob, f"{reason}{glob[1:]}')")
            notes.append(f"{option.label} {quote(glob)} matches no topic in {where}")
    return tuple(notes)


def topic_notes(options: "JobOptions", roots: "Sequence[LogRoot]") -> tuple[str, ...]:
    """Return a line for each pattern without a topic in the roots.

    Where an inventory stands for a listing, or a root cannot be listed, nobody knows it so early.
    """
    if not (options.include or options.exclude):
        return ()
    if options.file_list is not None and any(root.role.facts.takes_inventory for root in roots):
        return ()
    topics: set[str] = set()
    for root in roots:
        path = local_path(root.location)
        if root.role.facts.has_manifests and path is not None and not path.exists():
            continue  # it is to be made
        try:
            topics |= topics_of(root.open().directories())
        except StorageError:
            return ()
    places = [root.location for root in roots]
    return check_topics(options.include, options.exclude, topics, places)


def topics_of(directories: Iterable[str]) -> set[str]:
    """Return the topics of partition directories, also of renamed ones. Kafka renames a
    directory by its state."""
    partitions = (classify_directory(name)[1] for name in directories)
    return {partition.topic for partition in partitions if partition is not None}


# A job's progress as one terminal line; nothing without a terminal.


class ProgressLine:
    """Shows progress on standard error while a job runs; a context manager.

    Args:
        is_shown: Whether to show it, where standard error is a terminal.
        after_seconds: How long to wait before it is shown.
    """

    def __init__(self, *, is_shown: bool, after_seconds: float = 0) -> None:
        console = Console(stderr=True)
        self._begins = time.monotonic() + after_seconds
        self._bar = _new_bar(console) if is_shown and console.is_terminal else None

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None and self._bar.live.is_started:
            self._bar.stop()

    def _begin(self) -> None:
        if self._bar is not None and time.monotonic() >= self._begins:
            self._bar.start()

    def on_progress(self, progress: "JobProgress") -> None:
        """Show how far the job has come."""
        if self._bar is not None:
            from pylog_spark.run.progress import progress_text  # noqa: PLC0415  # Arrow

            self._begin()
            self._bar.update(
                self._bar.task_ids[0],
                total=progress.total_bytes,
                completed=progress.done_bytes,
                text=progress_text(progress),
            )


def _new_bar(console: Console) -> "Progress":
    from rich import progress  # noqa: PLC0415  # for a terminal alone

    bar = progress.Progress(
        progress.TextColumn("reading"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    bar.add_task("reading", total=None, text="looking what is there")
    return bar


# Up to so much needs no cluster, and no memory to speak of: Spark would do it with the same
# processors, in more time, and with the memory of a JVM besides. A dry run and the run are one.
MOST_PARTITIONS_HERE: Final = 10_000
MOST_BYTES_HERE: Final = 100 * 1024**3
_BOUND: Final = f"{MOST_PARTITIONS_HERE:,} partitions and 100 GiB of logs"


class Tasks(enum.Enum):
    """A command's default place for tasks, or for its ledger's writer."""

    NONE = enum.auto()  # it has none
    HERE = enum.auto()  # this machine
    HERE_IF_FEW = enum.auto()  # this machine, Spark for what is much, or elsewhere


# So many earlier runs a page shows, the newest.
_LAST_RUNS: Final = 30
# Rows, or why they cannot be read: what a run did stands, whatever became of its directories since.
Looked = Sequence[Row] | PylogError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLook:
    """What the page of a run shows beside its report."""

    ledger: str | None  # where runs are written down; None for nowhere
    past_runs: Looked  # the last runs of the ledger: ``past_runs.PastRun`` as mappings
    segments: Looked = ()  # of the biggest partitions: rows of ``survey.observe_segments``


def look_at_past_runs(ledger: str | None) -> Looked:
    """Return the last runs of a ledger, the newest first.

    One that lies in an object store is left to ``pylog runs``: how it is reached is a setting of
    Spark's, and a page should not wait for it.
    """
    from pylog_spark.ledger.tables import local_folder  # noqa: PLC0415  # Arrow
    from pylog_spark.operations.past_runs import list_past_runs  # noqa: PLC0415  # deltalake

    if ledger is None or local_folder(ledger) is None:
        return ()
    try:
        return [asdict(run) for run in list_past_runs(ledger, None, last=_LAST_RUNS)]
    except ConfigError:
        return ()  # a dry run may name one that is not there yet
    except PylogError as error:
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a command."""

    line: CommandLine
    options: "JobOptions"
    roots: "Sequence[LogRoot]" = ()  # the log directories of tasks that this machine can do as well
    subject: Any = None  # what it is about beside roots: a plan, a request; None for most
    notes: tuple[str, ...] = ()  # what its answer says besides, line by line
    # Writes lines for a program before there is a view; None where nothing does.
    writer: RowLines | None = None
    # Why its tasks are done where they are, and what takes the other engine; empty where somebody
    # said it.
    engine_note: str = ""
    page_look: PageLook | None = None  # what lay there after the work; None without a page

    @property
    def locations(self) -> list[str]:
        """Where its roots are."""
        return [root.location for root in self.roots]

    @property
    def output(self) -> OutputFormat:
        """How rows are written."""
        return self.line[OUTPUT]

    @property
    def is_for_person(self) -> bool:
        """Whether the answer is tables and sentences, not rows for a program."""
        return self.output is OutputFormat.TABLE

    @property
    def has_progress(self) -> bool:
        """Whether a terminal is shown how far the work has come."""
        return self.is_for_person and not self.line[QUIET]

    @property
    def is_wide(self) -> bool:
        """Whether tables leave nothing out."""
        return self.line[WIDE]

    @property
    def are_topics_chosen(self) -> bool:
        """Whether it is about some topics only."""
        return bool(self.options.include or self.options.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a command does in each step of a run."""

    name: str
    # Reads the options, and refuses what the operation would refuse: a person is spared the start
    # of a Spark session.
    prepare: Callable[[CommandLine], Call]
    operate: Callable[[Call, Any], Any]  # does it; gets the place of its tasks, None without one
    # Looks, after the work, at what its page shows besides; None where that is nothing.
    look_for_page: Callable[[Call, Any], PageLook] | None = None
    view: Callable[[Call, Any], View]  # returns the answer about what was done; reads no disk
    tasks: Tasks = Tasks.NONE
    asks_ledger: bool = False  # whether a dry run reads the ledger, too, which it never writes
    # Returns what it reads; in the end it says what was asked of S3 there. None where it does not.
    reads: Callable[[Call], Iterable[str]] | None = None

    def __call__(self, line: CommandLine) -> int:
        """Run the command and return its exit status."""
        for option in (REPORT, PLAN_OUT, METRICS_FILE):
            check_file_place(option.label, line.written(option))
        answer, status = io.StringIO(), None
        try:
            with redirect_stdout(answer) if line[QUIET] else nullcontext():
                call = self.prepare(line)
                place, note = self._place(call)
                call = replace(call, engine_note=note)
                report = self.operate(call, place)
                if self.look_for_page is not None and line[REPORT] is not None:
                    call = replace(call, page_look=self.look_for_page(call, report))
                status = show(self.view(call, report), line, call.writer)
            if self.reads is not None and not line[QUIET]:
                from pylog_spark.cli.tiers import tell_requests  # noqa: PLC0415  # roots

                tell_requests(self.reads(call))
        finally:
            # A page that cannot be written is no reason to hide what was done.
            if status != 0:
                sys.stdout.write(answer.getvalue())
        return status

    def _place(self, call: Call) -> "tuple[Place | None, str]":
        """Return the place of tasks, and a note about the choice."""
        options = call.options
        has_ledger = options.ledger is not None
        writes_ledger = has_ledger and not options.dry_run
        if self.tasks is Tasks.NONE:
            return None, ""
        is_said = options.engine is not EngineChoice.AUTO or options.master is not None
        if self.tasks is Tasks.HERE and not writes_ledger and not is_said:
            # Whoever has a session has it for something else.
            return None, ""
        place, note = self._choose(call)
        if place is not None:
            return place, note
        delta = has_ledger if self.asks_ledger else writes_ledger
        return start_session(self.name, options, delta=delta), note

    def _choose(self, call: Call) -> "tuple[Local | None, str]":
        """Return this machine if it does the tasks, without Spark, with a note."""
        from pylog_spark.engines.choice import Local  # noqa: PLC0415  # Arrow

        options = call.options
        if options.engine is not EngineChoice.AUTO or options.master is not None:
            is_here = options.engine is EngineChoice.LOCAL
            return Local.of_master(options.master) if is_here else None, ""
        from pylog_spark.session import has_session, is_spark_installed  # noqa: PLC0415  # finds Java

        if has_session():
            return None, "there is a session; --engine local takes this machine"
        if not _is_written_here(options.ledger):
            return None, "only Spark opens the ledger"
        if self.tasks is Tasks.HERE or not is_spark_installed():
            return Local(), ""
        from pylog_spark.discovery import list_few  # noqa: PLC0415  # Arrow

        listed = list_few(
            call.roots,
            TopicFilter(topics=options.include, exclude=options.exclude),
            most_partitions=MOST_PARTITIONS_HERE,
            most_bytes=MOST_BYTES_HERE,
        )
        if listed is not None:
            return Local(listed=listed), f"up to {_BOUND} here; --engine spark takes Spark"
        return None, f"beyond {_BOUND}, or not on this machine; --engine local takes this machine"


def show(view: View, line: CommandLine, writer: RowLines | None = None) -> int:
    """Write a view as a command line asks; return the exit status.

    Args:
        line: Output and page.
        writer: What has begun to write lines for a program; None for a new one.
    """
    is_wide = line[WIDE]
    if line[OUTPUT] is OutputFormat.TABLE:
        write_blocks(Console(), view.blocks, is_wide=is_wide)
        write_blocks(Console(), view.notes, is_wide=is_wide)
    else:
        writer = writer or RowLines(line[OUTPUT], *view.csv)
        writer.write(view.lines)
        for note in view.notes:
            write_line(note)
    for error in view.errors:
        write_line(error)
    page = line[REPORT]
    if page is not None and view.page is not None:
        write_page(page, view.page())
    return view.status if isinstance(view.status, int) else view.status()


def engine_text(engine: str, call: Call) -> str:
    """Return a run's engine and its reason, for the closing line."""
    why = f" ({call.engine_note})" if call.engine_note else ""
    return f"engine {engine}{why}"


def _is_written_here(ledger: str | None) -> bool:
    """Whether this machine can go on with a ledger."""
    from pylog_spark.ledger.tables import is_for_deltalake  # noqa: PLC0415  # Arrow

    return ledger is None or is_for_deltalake(ledger)


def load_options(line: CommandLine, *, release: str | None = None) -> "JobOptions":
    """Return the options of a run by this machine's clock."""
    from pylog_spark.options.load import load_config  # noqa: PLC0415  # pydantic, YAML

    return load_config(line, now_ms=SystemClock().now_ms(), release=release).options


def prepare_roots(
    line: CommandLine,
    *checks: "Callable[[Sequence[LogRoot], JobOptions], object]",
    may_be_tiers: bool = False,
) -> Call:
    """Return the call of a command about log directories.

    Args:
        checks: What else refuses roots and options.
        may_be_tiers: Whether it reads tiers (KIP-405), too.
    """
    from pylog_spark.cli.runner import topic_notes  # noqa: PLC0415  # as those below
    from pylog_spark.discovery import resolve_roots  # noqa: PLC0415  # Arrow
    from pylog_spark.run.guards import check_outside  # noqa: PLC0415  # Arrow

    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role, may_be_tiers=may_be_tiers)
    check_outside(REPORT.label, line[REPORT], roots)
    for check in checks:
        check(roots, options)
    return Call(line=line, options=options, roots=roots, notes=topic_notes(options, roots))


def start_session(command: str, options: "JobOptions", *, delta: bool) -> "SparkSession":
    """Start a Spark session for a command, or take the existing one.

    Args:
        command: Its name, for Spark's pages.
        delta: Whether Delta tables are read or written.
    """
    from pylog_spark.session import build_session  # noqa: PLC0415  # Spark

    session = build_session(
        options.master,
        options.spark_conf,
        app_name=f"pylog {command}",
        delta=delta,
        is_of_job=True,
    )
    # Spark's own handler asks the JVM to cancel its jobs in the middle of another call to it, and
    # what comes out is not always a KeyboardInterrupt. The operation cancels its jobs itself.
    interruption.take_signals()
    leave_out_lost_connections()
    return session


def check_file_place(option: str, file: Path | None) -> None:
    """Refuse an unwritable output file before the run begins. It would be written at the end of the
    run.

    Args:
        file: The file; None for none.
    """
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir():
        raise ConfigError(option, file, "is a directory; expected the name of a file")
    if not folder.is_dir():
        raise ConfigError(option, file, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(option, file, f"this process may not write into {folder}")
