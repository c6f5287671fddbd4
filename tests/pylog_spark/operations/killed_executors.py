"""Recoveries on the two executors of a cluster, in which processes are killed at work.

Started as a program by test_recover_distributed.py: only a session of its own can have executors.
Each line of its output is what one run said, as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pylog_spark.operations.recover import waves
from pylog_spark.operations.recover.driver import recover
from pylog_spark.options import Tuning
from pylog_spark.session import build_session
from storage_core.commit.claim import CommitClaim
from tests.jobs.spark_programs import executor_settings
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.crashed_roots import crashed_directory, forget_high_watermarks, tear

# Commits write to their claim at the beginning and after every step; the third is in the middle.
MIDDLE = 3
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1)
WHOLE = Tuning()


def kill(victim: str) -> None:
    """Kill this worker, or the executor that it works for, as the kernel would for its memory."""
    if victim == "executor":
        daemon = os.getppid()
        # Fields behind the program's name: its state, then the parent's process id.
        fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(fields[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class Marks:
    """Files that say who was killed already."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.scan, self.commit = folder / "scan", folder / "commit"


def kill_once(mark: Path, victim: str) -> None:
    """Kill, unless that was done before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    kill(victim)


def in_the_middle_of_a_commit(
    work: Callable[..., Any], mark: Path, victim: str | None
) -> Callable[..., Any]:
    """Return work whose first commit that has several steps dies in the middle of them."""

    def dying(*arguments: Any) -> Any:
        append, written = CommitClaim._append, [0]

        def counted(self: CommitClaim, record: dict[str, Any]) -> None:
            append(self, record)
            written[0] += 1
            if written[0] == MIDDLE and victim is not None:
                kill_once(mark, victim)

        CommitClaim._append = counted
        try:
            result = work(*arguments)
            return list(result) if isinstance(result, Iterator) else result
        finally:
            CommitClaim._append = append

    return dying


def after_the_first_segment(
    work: Callable[..., Any], mark: Path, victim: str | None
) -> Callable[..., Any]:
    """Return work that dies once it has read a segment."""

    def dying(*arguments: Any) -> Iterator[Any]:
        for batch in work(*arguments):
            if victim is not None:
                kill_once(mark, victim)
            yield batch

    return dying


def main(master: str, folder: Path, names: list[str]) -> None:
    """Recover copies of one directory, and let processes die meanwhile."""
    spark = build_session(
        master,
        executor_settings()
        | FEW_ROWS
        | {
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.executor.memory": "512m",
        },
        delta=False,
    )
    made = crashed_directory(folder / "before", names)
    forget_high_watermarks(made.path)
    for directory in made.partitions():
        tear(directory)
    scan, fold, whole = (
        waves.scan_segments,
        waves.fold_partitions,
        waves.recover_whole,
    )
    for name, tuning, scan_victim, commit_victim in (
        ("spread", SPREAD, None, None),
        ("worker-executor", SPREAD, "worker", "executor"),
        ("executor-worker", SPREAD, "executor", "worker"),
        ("whole-executor", WHOLE, None, "executor"),
    ):
        root = made.copy(folder / name)
        marks = Marks(folder / f"{name}-marks")
        waves.scan_segments, waves.fold_partitions, waves.recover_whole = (
            after_the_first_segment(scan, marks.scan, scan_victim),
            in_the_middle_of_a_commit(fold, marks.commit, commit_victim),
            in_the_middle_of_a_commit(whole, marks.commit, commit_victim),
        )
        options = replace(root.options, tuning=tuning)
        report = recover(spark, [root.path], options)
        said = {
            "run": name,
            "exit": report.exit_code,
            "rows": report.results["status"].to_pylist(),
            "killed": [marks.scan.exists(), marks.commit.exists()],
            "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
