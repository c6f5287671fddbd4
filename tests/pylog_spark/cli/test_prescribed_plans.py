"""What the doctor prints, run as printed: no readable record is in neither log nor salvage.

One accident at a time, and pairs of them, in a directory that was closed and in one whose broker
died. Without ``PYLOG_PRESCRIPTIONS`` it is a sample with a fixed seed. With it, it is all of one
directory, and so many pairs in the directories of a broker with two disks as it says: ``all``, or a
number, drawn with ``PYLOG_PRESCRIPTIONS_SEED``.
"""

import os
import random
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import typer.testing

from pylog_spark.options import load
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
)
from storage_core.kernels.crc32c import crc32c_by_table
from storage_core.maintenance.verification.findings import Code
from tests.kit import start_accidents
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.pylog_spark.cli.prescriptions import NoAnswerError, Shell
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS, Accident
from tests.storage_core.maintenance.verification.log_root import NOW_MS, log_root

PAIRS = os.environ.get("PYLOG_PRESCRIPTIONS")
SEED = int(os.environ.get("PYLOG_PRESCRIPTIONS_SEED", "31"))
SAMPLE = 20
FEW = 6
TWO_DISKS = GOLDEN / "two-disks" / "before.tar.gz"
Case = tuple[tuple[str, ...], bool]
# A bad block, and a file of the directory that is not what it was.
ONE_POWER_CUT = [
    (Code.BATCH_CRC_WRONG.value, "replication-zeroed"),
    (Code.BATCH_CRC_WRONG.value, "recovery-point-garbage"),
    ("first-batch-bad", "high-watermark-forgotten"),
]
# No index is built anew beside a file that cannot be read.
UNREADABLE = (Code.FILE_UNREADABLE.value, Code.TXN_INDEX_MISSING.value)
# What a recovery reads before it looks at the first log, beside a log that has to be recovered.
HINDRANCES = (
    "linked-metadata",
    "lock-folder",
    "marker-folder",
    "meta-version-7",
    "meta-other-node",
    "metadata-snapshot-empty",
    "recovery-folder",
)
# Longer than any log here but one, of which the rest is a hole.
MOST_BYTES = 1 << 16
MAGIC_AT, FIRST_LEGACY, V2 = 16, 2, 2


def overwritten(name: str, content: bytes) -> Accident:
    return lambda root: (root.path / name).write_bytes(content)


# What happens to the files of the directory itself, beyond one accident a finding.
MORE: dict[str, Accident] = {
    "replication-zeroed": overwritten(REPLICATION_FILE, bytes(64)),
    "replication-empty": overwritten(REPLICATION_FILE, b""),
    "high-watermark-forgotten": overwritten(REPLICATION_FILE, encode_offset_checkpoint({})),
    "recovery-point-garbage": overwritten(RECOVERY_POINT_FILE, b"\x93\x00garbage\n"),
    "log-start-garbage": overwritten(LOG_START_FILE, b"0\n7\n"),
    "first-batch-bad": lambda root: root.change(root.file(0), 30, b"\x55"),
    "middle-torn": lambda root: os.truncate(root.file(10), 100),
}
HAPPENINGS = {**{code.value: accident for code, accident in ACCIDENTS.items()}, **MORE}


@pytest.fixture(autouse=True, scope="module")
def _quick_commands() -> Iterator[None]:
    """Let what is the same in every call of the program be made once: some thousand calls follow.

    The options of the commands, and what ``conf/`` says.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        patch.setattr(load, "read_config_file", cache(load.read_config_file))
        yield


@pytest.fixture(scope="module")
def two_disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of a broker with two disks, to be copied."""
    return unpack_archive(TWO_DISKS, tmp_path_factory.mktemp("two-disks"))


def die(root: Path) -> None:
    """Let the broker have died before anything was flushed."""
    (root / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    (root / RECOVERY_POINT_FILE).write_bytes(encode_offset_checkpoint({}))


@lru_cache(maxsize=4096)
def readable_batches(log: bytes) -> tuple[bytes, ...]:
    """Return the bytes of every batch with a right checksum, wherever in a file it begins."""
    if len(log) <= MAGIC_AT:
        return ()
    data = np.frombuffer(log, np.uint8)
    lengths = np.lib.stride_tricks.sliding_window_view(data[8:], 4)[: len(log) - MAGIC_AT]
    ends = np.arange(len(lengths)) + 12 + lengths.copy().view(">i4")[:, 0].astype(np.int64)
    magics = data[MAGIC_AT:]
    can_be = (magics <= V2) & (ends >= np.arange(len(lengths)) + 22) & (ends <= len(log))
    batches = []
    for at in np.flatnonzero(can_be).tolist():
        end = int(ends[at])
        if magics[at] < FIRST_LEGACY:
            (crc,) = struct.unpack_from(">I", log, at + 12)
            is_right = crc == zlib.crc32(log[at + MAGIC_AT : end])
        else:
            (crc,) = struct.unpack_from(">I", log, at + 17)
            is_right = crc == crc32c_by_table(data, at + 21, end)
        if is_right:
            batches.append(log[at:end])
    return tuple(batches)


def contents(folder: Path, *suffixes: str) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.suffix in suffixes and path.is_file():
            with path.open("rb") as file:
                yield file.read(MOST_BYTES)


def lost(before: list[bytes], folder: Path) -> list[bytes]:
    """Return the batches that no log and no salvage has any more."""
    after = list(contents(folder, ".log", ".raw"))
    return [batch for batch in before if not any(batch in content for content in after)]


def every(names: Iterable[str]) -> list[Case]:
    """Return accidents, alone and in pairs, each in a directory that was closed and in another."""
    listed = sorted(names)
    happenings = [*((name,) for name in listed), *combinations(listed, 2)]
    return [(each, is_closed) for each in happenings for is_closed in (True, False)]


def drawn(names: Iterable[str], singles: int | None, pairs: int) -> list[Case]:
    """Return some of the cases; of accidents alone so many, or all, each in one state."""
    dice = random.Random(SEED)
    listed = sorted(names)
    alone = [(name,) for name in listed]
    chosen = alone if singles is None else dice.sample(alone, singles)
    chosen += dice.sample(list(combinations(listed, 2)), pairs)
    return [(each, dice.random() < 0.5) for each in chosen]


def of_one_directory() -> list[Case]:
    chosen = drawn(HAPPENINGS, None, SAMPLE) if PAIRS is None else every(HAPPENINGS)
    return [*chosen, *((names, False) for names in (*ONE_POWER_CUT, UNREADABLE))]


def of_two_disks() -> list[Case]:
    if PAIRS is None:
        chosen = drawn(start_accidents.ACCIDENTS, FEW, FEW)
        return chosen + [((name, "log-crc-closed"), True) for name in HINDRANCES]
    cases = every(start_accidents.ACCIDENTS)
    if PAIRS == "all":
        return cases
    alone = [case for case in cases if len(case[0]) == 1]
    return alone + random.Random(SEED).sample(cases[len(alone) :], int(PAIRS))


def name_of(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return "closed" if value else "died"


def follow(folder: Path, roots: list[Path], pylog, now_ms: int) -> None:
    """Ask the doctor and run what it prints; no batch may be gone after any command."""
    before = [
        batch for root in roots for log in contents(root, ".log") for batch in readable_batches(log)
    ]
    shell = Shell(pylog, now_ms, engine="local")
    try:
        _, answer = shell.ask(*roots)
    except NoAnswerError:
        return  # as where a disk is not mounted: nothing is prescribed
    for command in answer["commands"]:
        shell.run(command, may_refuse=True)
        assert lost(before, folder) == [], command


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("names", "is_closed"), of_one_directory(), ids=name_of)
def test_no_record_is_lost_by_what_the_doctor_prints(tmp_path, pylog, names, is_closed):
    root = log_root(tmp_path / "log")
    if not is_closed:
        die(root.path)
    try:
        for name in names:
            HAPPENINGS[name](root)
    except (FileNotFoundError, FileExistsError):
        pytest.skip("one accident took what the other works on")
    follow(tmp_path, [root.path], pylog, NOW_MS)


@pytest.mark.thorough
@pytest.mark.parametrize(("names", "is_closed"), of_two_disks(), ids=name_of)
def test_nor_in_the_directories_of_a_broker_with_two_disks(
    tmp_path, pylog, two_disks, names, is_closed
):
    disks = start_accidents.Disks(tmp_path)
    shutil.copytree(two_disks, tmp_path, dirs_exist_ok=True)
    if not is_closed:
        for root in disks.roots:
            die(root)
    try:
        for name in names:
            start_accidents.ACCIDENTS[name](disks)
    except (start_accidents.NotApplicableError, OSError):
        pytest.skip("one accident took what the other works on")
    now_ms = int(max(path.lstat().st_mtime for path in tmp_path.rglob("*"))) * 1000 + 60_000
    follow(tmp_path, disks.roots, pylog, now_ms)
