"""Who is at which log directory when: every task of a session, by what it opens and lists."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

# Long enough that tasks which run at the same time are seen to.
LINGER_SECONDS = 0.2
# How long the first task at a place waits for a second one, where one may come.
MEETING_SECONDS = 20.0


@dataclass(frozen=True)
class Visit:
    """One task at one log directory, from its first touch to its last."""

    task: int
    place: str
    first: float
    last: float


def watch(monkeypatch: Any, folder: Path, places: list[Path], *, may_meet: bool = False) -> None:
    """Let the tasks of what follows write down where they are, as files in a folder.

    Args:
        monkeypatch: Of the test.
        folder: For the files.
        places: Log directories.
        may_meet: Whether the first task at a place waits for a second one, which a busy machine
            starts late.
    """
    roots, notes = [str(place) for place in places], str(folder)

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(argument: Any) -> Any:
            seen: dict[str, list[float]] = {}

            def note(event: str, arguments: tuple[Any, ...]) -> None:
                if not (event == "open" or event.startswith("os.")) or not arguments:
                    return
                for root in roots:
                    if str(arguments[0]).startswith(root + "/"):
                        is_new = root not in seen
                        seen.setdefault(root, [time.monotonic(), 0.0])
                        if is_new:
                            if may_meet:
                                _meet(Path(notes), roots.index(root))
                            time.sleep(LINGER_SECONDS)
                        seen[root][1] = time.monotonic()

            # Python never forgets such a hook, and Spark goes on with its workers: one for each.
            hooks = sys.__dict__.get("_watching")
            if hooks is None:
                hooks = sys.__dict__["_watching"] = []
                told: list[Any] = hooks
                sys.addaudithook(lambda *said: [hook(*said) for hook in tuple(told)] and None)
            hooks.append(note)
            try:
                answer = work(argument)
                return iter(list(answer)) if isinstance(answer, Iterator) else answer
            finally:
                hooks.remove(note)
                task = TaskContext.get().taskAttemptId()
                name = f"{time.monotonic_ns()}-{task}.json"
                Path(notes, name).write_text(json.dumps([task, seen]))

        return run

    _wrap(monkeypatch, DataFrame, "mapInArrow", noting)
    _wrap(monkeypatch, PandasGroupedOpsMixin, "applyInArrow", noting)


def _meet(folder: Path, number: int) -> None:
    """Wait until two tasks have come to a place, or for some seconds."""
    (folder / f"{number}-{TaskContext.get().taskAttemptId()}.arrived").touch()
    deadline = time.monotonic() + MEETING_SECONDS
    while len(list(folder.glob(f"{number}-*.arrived"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)


def _wrap(monkeypatch: Any, owner: type, method: str, noting: Callable[..., Any]) -> None:
    original = getattr(owner, method)

    def wrapped(self: Any, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return original(self, noting(work), *arguments, **named)

    monkeypatch.setattr(owner, method, wrapped)


def visits(folder: Path) -> list[Visit]:
    """Return who was where."""
    found = []
    for path in sorted(folder.glob("*.json")):
        task, seen = json.loads(path.read_text())
        found += [Visit(task, place, first, last) for place, (first, last) in seen.items()]
    return found


def most_at_once(found: list[Visit]) -> int:
    """Return how many tasks were at one place at the same time, at most."""
    most = 0
    for _, group in itertools.groupby(sorted(found, key=lambda v: v.place), lambda v: v.place):
        there = list(group)
        for visit in there:
            same = {v.task for v in there if v.first <= visit.first < v.last}
            most = max(most, len(same | {visit.task}))
    return most
