"""Hold the doctor's forecast against a real broker's start, accident by accident and in pairs.

    python -m tests.oracle.forecasts --pairs 200 --part 1/4 --results build/forecasts.jsonl

A case is a name: ``two:absent`` or ``one:linked+marker-missing``. What ``pylog doctor`` says of the
directories is held against what Kafka's own broker then does to them. Results are kept, so that a
run that was stopped goes on where it was. Exit status 1 where forecast and broker disagree.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c
from typer.testing import CliRunner

from pylog_spark.cli.program import app
from storage_core.formats.batch_v2 import ATTRIBUTES_AT, CRC_AT, MAGIC_AT
from tests.kit.file_damage import batch_positions
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.mounted_disk import SmallDisk, fill_disk
from tests.kit.start_accidents import (
    ACCIDENTS,
    ACCIDENTS_OF_OWNERS,
    METADATA,
    Disks,
    NotApplicableError,
)
from tests.oracle.started_broker import StartedBroker, Starter

ARCHIVE: Final = GOLDEN / "two-disks" / "before.tar.gz"
NOBODY: Final = 65534
MARKS: Final = ("stray", "delete", "future")
# Advice that sends a person to the broker at once.
START_ADVICE: Final = frozenset({"start-broker", "recover"})
# Those of owners at last: whoever changes a file may own it.
DISK_FULL: Final = "disk-full"
EVERY: Final = (*ACCIDENTS, *ACCIDENTS_OF_OWNERS, DISK_FULL)
# Room for what accidents write, before the rest of a small disk is filled.
_SPARE_BYTES: Final = 32 << 20
_SERVED: Final = frozenset({"opened", "recovered", "emptied", "created", "unknown"})
_CHECKPOINTS: Final = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)

Row = dict[str, Any]
Batches = set[tuple[int, bytes]]


def cases(pairs: int) -> list[str]:
    """Return the names of all cases: each accident alone, and so many pairs, always the same.

    Who adds an accident changes few of the pairs: each has a number of its own.
    """
    alone = [f"{disks}:{name}" for disks in ("two", "one") for name in EVERY]
    both = [
        f"{disks}:{'+'.join(pair)}" for disks in ("two", "one") for pair in combinations(EVERY, 2)
    ]
    return [*alone, *sorted(both, key=lambda case: crc32c(case.encode()))[:pairs]]


class Referee:
    """Makes the directories of a case, asks the doctor, starts a broker, compares.

    Args:
        as_nobody: Starts those that run as another user.
    """

    def __init__(self, folder: Path, starter: Starter, as_nobody: Starter) -> None:
        self._starter = starter
        self._as_nobody = as_nobody
        self._folder = folder
        self._count = 0
        self._bases = {"two": folder / "two", "one": folder / "one"}
        self._runner = CliRunner()
        unpack_archive(ARCHIVE, self._bases["two"])
        self._make_one_disk()

    def judge(self, case: str) -> Row | None:
        """Return the result of a case, None where an accident has nothing to happen to."""
        accidents = case.partition(":")[2]
        # A broker that would have ended may still write to the directories of the case before.
        shutil.rmtree(self._folder / str(self._count), ignore_errors=True)
        self._count += 1
        disks = Disks(self._folder / str(self._count))
        if DISK_FULL not in accidents:
            disks.base.mkdir()
            return self._judge(case, disks)
        try:
            with SmallDisk(disks.base, _SPARE_BYTES):
                return self._judge(case, disks)
        except PermissionError:
            return None

    def _judge(self, case: str, disks: Disks) -> Row | None:
        base, _, accidents = case.partition(":")
        # Blocks that no file uses would be room that a start gains.
        words = ["cp", "--archive", "--sparse=always", f"{self._bases[base]}/.", str(disks.base)]
        subprocess.run(words, check=True)
        is_of_nobody = "owner-" in accidents
        if is_of_nobody and os.geteuid() != 0:
            return None  # only root gives files away
        try:
            _let_happen(disks, accidents.split("+"))
        except (NotApplicableError, FileNotFoundError, FileExistsError, NotADirectoryError):
            return None
        said = self._ask(disks)
        starts = _log_starts(disks)
        metadata = _metadata_logs(disks.base)
        before = _served(disks)
        for name, batches in _compressed(disks).items():
            before[name] = before.get(name, set()) | batches
        names_before = _marked(disks)
        # Behind a link the doctor looked at nothing, and says so.
        unknown = {
            _partition(row) for row in said.get("partitions", ()) if row["start"] == "unknown"
        }
        starter = self._as_nobody if is_of_nobody else self._starter
        broker = starter.start(disks.roots)
        if "error" in said:
            faults = [f"doctor: {said['error']}"] if broker.is_up else []
            return {"case": case, "faults": faults}
        if unknown and not broker.is_up:
            return {"case": case, "faults": [], "advice": said["advice"], "is_up": False}
        marked = _marked(disks) - names_before
        after = _served(disks)
        lost = {
            name: count_lost(batches, after.get(name, set()), starts.get(name, 0))
            for name, batches in before.items()
            if name not in unknown
        }
        # Where no byte is free, a broker may yet free the few that it needs by itself.
        is_by_luck = broker.is_up and DISK_FULL in accidents
        faults = [] if is_by_luck else list(_compare(said, broker, marked))
        if broker.is_up and any(lost.values()) and said["advice"] in START_ADVICE:
            gone = ", ".join(f"{name} {count}" for name, count in lost.items() if count)
            faults.append(f"doctor says {said['advice']}, and batches are gone: {gone}")
        # What metadata that were closed have lost, or a start cuts off, may be any change.
        left = _metadata_logs(disks.base)
        keeps_metadata = all(
            left.get(name, b"").startswith(data)
            for logs in (_metadata_logs(self._bases[base]), metadata)
            for name, data in logs.items()
        )
        is_whole = broker.is_up and not broker.offline and not any(lost.values()) and keeps_metadata
        if is_whole and not is_by_luck and said["advice"] == "do-not-start":
            faults.append("doctor says do-not-start, and the broker is up with all directories")
        if (not broker.is_up or broker.offline) and said["advice"] != "do-not-start":
            faults.append(f"doctor says {said['advice']}; {broker.error or 'a disk is offline'}")
        return {
            "case": case,
            "faults": faults,
            "advice": said["advice"],
            "is_up": broker.is_up,
            "offline": _names(broker.offline),
            "lost": {name: count for name, count in lost.items() if count},
            "error": broker.error[:300],
        }

    def _make_one_disk(self) -> None:
        """Make a directory with the logs of both, which a broker has started on and closed."""
        two, one = self._bases["two"], self._bases["one"]
        shutil.copytree(two, one)
        first, second = one / "d1", one / "d2"
        for path in sorted(second.iterdir()):
            if path.is_dir():
                shutil.move(path, first / path.name)
        for name in _CHECKPOINTS:
            lines = [
                line
                for root in (first, second)
                if (root / name).exists()
                for line in (root / name).read_text().splitlines()[2:]
            ]
            (first / name).write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
        shutil.rmtree(second)
        if not self._starter.start([first]).is_up:
            raise AssertionError("no broker starts on one disk")

    def _ask(self, disks: Disks) -> Row:
        words = ["doctor", *map(str, disks.roots), "--engine", "local", "--output", "json"]
        result = self._runner.invoke(app, words, prog_name="pylog")
        if not result.stdout:
            return {"error": f"exit {result.exit_code}: {result.stderr[-300:]}"}
        answer: Row = json.loads(result.stdout)
        return answer


def _let_happen(disks: Disks, names: Sequence[str]) -> None:
    for name in names:
        if name in ACCIDENTS:
            ACCIDENTS[name](disks)
    taken = [ACCIDENTS_OF_OWNERS[name] for name in names if name in ACCIDENTS_OF_OWNERS]
    if taken:
        disks.give_to(NOBODY)
    for happen in taken:
        happen(disks)
    if DISK_FULL in names:
        fill_disk(disks.base)


def _compare(said: Mapping[str, Any], broker: StartedBroker, marked: set[str]) -> Iterator[str]:
    """Yield where a forecast is not what the broker did."""
    if said["start"]["is_up"] and not broker.is_up and _sets_aside_where_it_fails(said):
        return
    if said["start"]["is_up"] != broker.is_up:
        yield f"forecast up: {said['start']['is_up']}, broker up: {broker.is_up} {broker.error}"
    if not broker.is_up:
        return
    offline = {root["location"] for root in said["roots"] if root["start"] == "offline"}
    if said["start"]["is_up"] and offline != set(broker.offline):
        yield f"forecast offline: {_names(offline)}, offline: {_names(broker.offline)}"
    if not said["start"]["has_metadata"]:
        return  # and the doctor says that it does not know
    yield from _compare_marks(said["partitions"], marked)
    yield from _compare_logs(said["partitions"], broker)


def _sets_aside_where_it_fails(said: Mapping[str, Any]) -> bool:
    """Whether a start would set logs aside in a directory that goes offline meanwhile.

    Kafka 4.4 does one before the other as its threads come to it: of three such starts one ended in
    ``BrokerMetadataPublisher.initializeManagers``.
    """
    offline = {_partition(row) for row in said["partitions"] if row["start"] == "offline"}
    return any(
        found["code"] == "PARTITION_STRAYED" and _partition(found) in offline
        for found in said["findings"]
    )


def _compare_marks(rows: Iterable[Row], marked: set[str]) -> Iterator[str]:
    """Yield where other directories are set aside or deleted than was foretold."""
    foretold: set[str] = set()
    # A move that goes on ends with the deletion of what it has copied; so does that of no record.
    # Of what lies behind a link the doctor says only that. Logs of a directory that goes offline
    # are opened beside the one that fails: some of them first.
    open_ended: set[str] = set()
    for row in rows:
        name, start = _partition(row), row["start"]
        if start in {"strayed", "deleted"}:
            foretold.add(f"{Path(row['directory']).parent.name}/{name} {start}")
        elif row["directory"].endswith("-future") or start in {"unknown", "offline"}:
            open_ended.add(name)
    others = {mark for mark in marked - foretold if _name_of(mark) not in open_ended}
    if not foretold <= marked or others:
        yield f"forecast set aside or deleted: {sorted(foretold)}, so are {sorted(marked)}"


def _compare_logs(rows: Iterable[Row], broker: StartedBroker) -> Iterator[str]:
    """Yield where the broker serves other logs, or others' ends, than was foretold."""
    foretold: dict[str, Row] = {}
    gone: set[str] = set()
    for row in rows:
        name, start = _partition(row), row["start"]
        if start in {"strayed", "deleted"}:
            gone.add(name)
        elif start in _SERVED:
            # A copy on its way is served only where nothing else is.
            is_copy = row["directory"].endswith("-future")
            if not is_copy or name not in foretold:
                foretold[name] = row
    # In the place of what was set aside an empty log is made, if the broker has the partition.
    logs = {n: log for n, log in (broker.logs or {}).items() if n in foretold or n not in gone}
    if foretold.keys() != logs.keys():
        yield f"forecast only: {_only(foretold, logs)}, served only: {_only(logs, foretold)}"
    for name in sorted(foretold.keys() & logs.keys()):
        row, log = foretold[name], logs[name]
        start, end = row["start"], row["log_end_offset"]
        is_empty = log.log_start_offset >= log.log_end_offset
        if start in {"emptied", "created"} and not is_empty:
            yield f"{name} is {start}, and ends at {log.log_end_offset}"
        if start in {"opened", "recovered"} and end != log.log_end_offset:
            yield f"{name} is {start} to {end}, it ends at {log.log_end_offset}"


def _partition(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}"


def _name_of(mark: str) -> str:
    return mark.partition("/")[2].partition(" ")[0]


def _served(disks: Disks) -> dict[str, Batches]:
    """Return the batches with a right CRC of each partition, copies on their way included."""
    served: dict[str, Batches] = {}
    for root in disks.roots:
        for path in sorted(root.iterdir()):
            name = path.name.partition(".")[0] if path.name.endswith("-future") else path.name
            if path.is_dir() and not path.name.endswith(MARKS[:2]) and name != METADATA:
                served.setdefault(name, set()).update(_batches(path))
    return served


def _compressed(disks: Disks) -> dict[str, Batches]:
    """Return the batches of segments that another program compressed, by partition."""
    batches: dict[str, Batches] = {}
    for path in disks.base.glob("d[0-9]/*/*.log.*.gz"):
        found = _batches_of(gzip.decompress(path.read_bytes()))
        batches.setdefault(path.parent.name, set()).update(found)
    return batches


def _metadata_logs(folder: Path) -> dict[str, bytes]:
    """Return the logs of the cluster's metadata by path, without the zeros at their ends."""
    paths = folder.glob(f"d[0-9]/{METADATA}/*.log")
    return {
        str(path.relative_to(folder)): path.read_bytes().rstrip(b"\0")
        for path in paths
        if path.is_file()
    }


def _log_starts(disks: Disks) -> dict[str, int]:
    """Return where logs start by their checkpoints: what lies below is served to nobody."""
    starts = {}
    for path in disks.base.glob("d[0-9]/log-start-offset-checkpoint"):
        lines = path.read_bytes().decode("latin-1").splitlines()[2:] if path.is_file() else []
        for topic, partition, offset in (line.split() for line in lines if line.count(" ") == 2):
            starts[f"{topic}-{partition}"] = int(offset)
    return starts


def count_lost(before: Batches, after: Batches, log_start: int) -> int:
    """Return how many batches are gone that somebody could read.

    A start behind the log's last batch is a mistake of the checkpoint: every batch counts then.
    """
    is_mistaken = all(offset < log_start for offset, _ in before)
    return sum(is_mistaken or offset >= log_start for offset, _ in before - after)


def _batches(directory: Path) -> Batches:
    batches: Batches = set()
    for path in directory.glob("*.log"):
        if not path.is_file() or path.stat().st_size > 1 << 24 or not path.stem.isdecimal():
            continue
        batches |= _batches_of(path.read_bytes())
    return batches


def _batches_of(data: bytes) -> Batches:
    batches: Batches = set()
    for position, size in batch_positions(data):
        batch = data[position : position + size]
        crc = batch[CRC_AT : CRC_AT + 4]
        is_record = size > ATTRIBUTES_AT and batch[MAGIC_AT] == 2
        if is_record and crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4) == crc:
            batches.add((int.from_bytes(batch[:8]), crc))
    return batches


def _marked(disks: Disks) -> set[str]:
    """Return the directories that are set aside or wait for their deletion."""
    states = {"stray": "strayed", "delete": "deleted"}
    return {
        f"{root.name}/{path.name.rpartition('.')[0]} {states[mark]}"
        for root in disks.roots
        for mark in states
        for path in root.glob(f"*-{mark}")
    }


def _only(some: Iterable[str], others: Iterable[str]) -> list[str]:
    return sorted(set(some) - set(others))


def _names(roots: Iterable[str]) -> list[str]:
    return sorted(Path(root).name for root in roots)


def main() -> int:
    """Run cases; print those that disagree, and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    wanted = options.only or cases(options.pairs)[part - 1 :: parts]
    done = _kept(options.results)
    disagreeing = judged = 0
    with (
        tempfile.TemporaryDirectory(prefix="forecasts-") as folder,
        Starter() as starter,
        Starter(NOBODY) as as_nobody,
    ):
        referee = Referee(Path(folder), starter, as_nobody)
        for case in wanted:
            result = done.get(case) or referee.judge(case) or {"case": case, "skipped": True}
            if case not in done and options.results is not None:
                with options.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            judged += "skipped" not in result
            if result.get("faults"):
                disagreeing += 1
                _say(f"{case}: " + "; ".join(result["faults"]))
    _say(f"{judged} starts of a broker, {disagreeing} not as the doctor said")
    return 1 if disagreeing or not judged else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _kept(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {row["case"]: row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
