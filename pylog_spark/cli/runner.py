"""Steps of a command: arguments, options, early refusals, place, operation, answer.

The steps and their order are here, once; a ``Work`` says what a command does in each. What is heavy
is imported when a step needs it.
"""

import enum
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from pylog_spark.cli.error_text import leave_out_lost_connections, write_line
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.options.choices import EngineChoice, OutputFormat
from pylog_spark.options.declared import METRICS_FILE, OUTPUT, PLAN_OUT, QUIET, REPORT, ROOTS, WIDE
from pylog_spark.options.option import CommandLine
from pylog_spark.report_page import write_page
from pylog_spark.text_table import write_blocks
from pylog_spark.view import View
from storage_core import interruption
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylog_spark.engines.choice import Place
    from pylog_spark.options import JobOptions
    from storage_core.roots.open_root import LogRoot


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
    view: Callable[[Call, Any], View]  # returns the answer about what was done
    tasks: Tasks = Tasks.NONE
    asks_ledger: bool = False  # whether a dry run reads the ledger, too, which it never writes

    def __call__(self, line: CommandLine) -> int:
        """Run the command and return its exit status."""
        for option in (REPORT, PLAN_OUT, METRICS_FILE):
            check_file_place(option.label, line.written(option))
        if not line[QUIET]:
            return self._run(line)
        answer, status = io.StringIO(), None
        try:
            with redirect_stdout(answer):
                status = self._run(line)
        finally:
            # A page that cannot be written is no reason to hide what was done.
            if status != 0:
                sys.stdout.write(answer.getvalue())
        return status

    def _run(self, line: CommandLine) -> int:
        """Do all of it, and print the answer."""
        call = self.prepare(line)
        place, note = self._place(call)
        call = replace(call, engine_note=note)
        return show(self.view(call, self.operate(call, place)), line, call.writer)

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
        is_here, note = self._choose(call)
        if is_here:
            from pylog_spark.engines.choice import Local  # noqa: PLC0415  # Arrow

            return Local.of_master(options.master), note
        delta = has_ledger if self.asks_ledger else writes_ledger
        return start_session(self.name, options, delta=delta), note

    def _choose(self, call: Call) -> tuple[bool, str]:
        """Return whether this machine does the tasks, with a note. They are done without Spark
        then."""
        options = call.options
        if options.engine is not EngineChoice.AUTO or options.master is not None:
            return options.engine is EngineChoice.LOCAL, ""
        from pylog_spark.session import has_session, is_spark_installed  # noqa: PLC0415  # finds Java

        if has_session():
            return False, "there is a session; --engine local takes this machine"
        if not _is_written_here(options.ledger):
            return False, "only Spark opens the ledger"
        if self.tasks is Tasks.HERE or not is_spark_installed():
            return True, ""
        if self._is_little(call):
            return True, f"up to {_BOUND} here; --engine spark takes Spark"
        return False, f"beyond {_BOUND}, or not on this machine; --engine local takes this machine"

    def _is_little(self, call: Call) -> bool:
        """Whether a command's data lies here, and is not much."""
        from pylog_spark.discovery import are_few, count_directories  # noqa: PLC0415  # Arrow

        count = count_directories(call.roots)
        if count is None or count > MOST_PARTITIONS_HERE:
            return False
        topics = TopicFilter(topics=call.options.include, exclude=call.options.exclude)
        return are_few(call.roots, topics, most_bytes=MOST_BYTES_HERE)


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
    line: CommandLine, *checks: "Callable[[Sequence[LogRoot], JobOptions], object]"
) -> Call:
    """Return the call of a command about log directories.

    Args:
        checks: What else refuses roots and options.
    """
    from pylog_spark.cli.chosen_topics import topic_notes  # noqa: PLC0415  # as those below
    from pylog_spark.discovery import resolve_roots  # noqa: PLC0415  # Arrow
    from pylog_spark.run.guards import check_outside  # noqa: PLC0415  # Arrow

    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role)
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
