"""List past runs from a ledger and a trash. It also says which of them can be undone.

Read only, in this process: the ledger's table of runs, and of the trash what each commit says of
itself. No file that is kept is read.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pylog_spark.outcomes import RunEvent
from storage_core.commit.purge import find_runs
from storage_core.commit.trash import BEGUN, DONE, list_commits, read_commit, read_run
from storage_core.errors import ConfigError, PylogError
from storage_core.wording import count_text

# Stands for the newest run.
LATEST: Final = "latest"
# So many runs with the same beginning are named.
_MOST_NAMED: Final = 3


class Undo(enum.StrEnum):
    """Whether a run can be undone from the trash."""

    POSSIBLE = "possible"  # unless somebody has changed its files since: the undo looks
    BEGUN = "begun"  # some partitions are undone: the same command goes on
    DONE = "done"
    NOTHING = "nothing"  # it kept nothing, so it took nothing away, or it was purged
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run."""

    run_id: str  # its name; names sort by time
    action: str
    started_ms: int | None  # when it began, epoch milliseconds; None where its trash cannot be read
    # Whether the ledger has its end; None where no ledger has its beginning.
    has_ended: bool | None = None
    exit_code: int | None = None  # its exit status; None without an end, and after an error
    roots: tuple[str, ...] = ()
    partitions_done: int | None = None  # how many it changed; None without an end
    partitions_skipped: int | None = None  # how many it left alone
    partitions_failed: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None  # the same afterwards
    duration_ms: int | None = None
    error: str | None = None  # what ended it, or why its trash cannot be read
    undo: Undo | None = None  # whether it can be undone; None where no trash was asked
    kept_partitions: int | None = None  # how many partitions the trash has something of
    kept_bytes: int | None = None


def choose_run(name: str, names: Collection[str]) -> str | None:
    """Return the run that a user means by its name, the name's beginning, or ``latest``.

    Args:
        names: The runs there are.

    Returns:
        None if there is no such run.

    Raises:
        ConfigError: Several runs begin so.
    """
    if name in names or not name:
        return name or None
    if name == LATEST:
        return max(names, default=None)
    meant = sorted(each for each in names if each.startswith(name))
    if len(meant) > 1:
        shown = ", ".join(meant[:_MOST_NAMED]) + (", ..." if len(meant) > _MOST_NAMED else "")
        raise ConfigError("RUN", name, f"{len(meant)} runs begin so: {shown}")
    return meant[0] if meant else None


def list_past_runs(
    ledger: str | None, trash: str | None, *, last: int, only: str | None = None
) -> list[PastRun]:
    """Return the last runs of a ledger and a trash, newest first.

    Args:
        ledger: Path or URL of a ledger; None for none.
        trash: The folder in which runs kept what they took away; None for none.
        only: The one run that is asked for, as ``choose_run`` takes it; None for all.
    """
    if ledger is None and trash is None:
        raise ConfigError("--ledger", None, "say where runs are written down: --ledger or --trash")
    runs = {} if ledger is None else _runs_of_ledger(ledger)
    folders: dict[str, Path] = {}
    if trash is not None:
        if not Path(trash).is_dir():
            raise ConfigError("--trash", trash, "there is no such folder")
        folders = {folder.name: folder for folder in find_runs(Path(trash))}
    names = sorted({*runs, *folders}, reverse=True)
    if only is not None:
        run = choose_run(only, names)
        if run is None:
            raise ConfigError(
                "RUN", only, f"no such run; {count_text(len(names), 'run')} are there"
            )
        names = [run]
    names = names[:last]
    return [_with_trash(name, runs.get(name), trash, folders.get(name)) for name in names]


def _runs_of_ledger(ledger: str) -> dict[str, PastRun]:
    from pylog_spark.ledger.local_ledger import read_runs  # noqa: PLC0415  # deltalake

    runs: dict[str, PastRun] = {}
    # The end of a run stands behind its start, or in its place where that row was not written.
    for row in sorted(read_runs(ledger), key=lambda row: row["event"] != RunEvent.START):
        at_ms = int(row["at"].timestamp() * 1000)
        is_end = row["event"] == RunEvent.END
        begun = runs.get(row["run_id"])
        run = PastRun(
            run_id=row["run_id"],
            action=row["action"],
            started_ms=at_ms - (row["duration_ms"] or 0) if begun is None else begun.started_ms,
            has_ended=is_end,
            roots=tuple(row["roots"] or ()),
        )
        if is_end:
            run = replace(
                run,
                exit_code=row["exit_code"],
                partitions_done=row["partitions_done"],
                partitions_skipped=row["partitions_skipped"],
                partitions_failed=row["partitions_failed"],
                bytes_before=row["bytes_before"],
                bytes_after=row["bytes_after"],
                duration_ms=row["duration_ms"],
                error=row["error"],
            )
        runs[run.run_id] = run
    return runs


def _with_trash(name: str, run: PastRun | None, trash: str | None, folder: Path | None) -> PastRun:
    """Return a run as the ledger has it, with its undo state. What the ledger lacks comes from
    the run's trash."""
    if folder is None:
        assert run is not None  # noqa: S101  # one of them has its name
        return run if trash is None else replace(run, undo=Undo.NOTHING)
    try:
        if run is None:
            trash_run = read_run(folder)
            run = PastRun(
                run_id=name,
                action=trash_run.action,
                started_ms=trash_run.started_ms,
                roots=tuple(root.location for root in trash_run.roots),
            )
        return _with_commits(run, list(list_commits(folder)))
    except PylogError as error:
        begun = run or PastRun(run_id=name, action="", started_ms=None)
        return replace(begun, undo=Undo.UNREADABLE, error=begun.error or str(error))


def _with_commits(run: PastRun, folders: Sequence[Path]) -> PastRun:
    commits = [read_commit(folder) for folder in folders]
    states = {commit.undo for commit in commits}
    if not commits:
        undo = Undo.NOTHING
    elif states == {DONE}:
        undo = Undo.DONE
    else:
        undo = Undo.BEGUN if states & {BEGUN, DONE} else Undo.POSSIBLE
    return replace(
        run,
        undo=undo,
        kept_partitions=len({commit.directory for commit in commits}),
        kept_bytes=sum(file.size_bytes for commit in commits for file in commit.former_files),
    )
