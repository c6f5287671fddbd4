"""What the doctor prints, run as printed: no readable record is in neither log nor salvage.

One accident at a time, and pairs of them, in a directory that was closed and in one whose broker
died: all of them with ``PYLOG_PRESCRIPTIONS=1``, a sample with a fixed seed without.
"""

import os
import random
import struct
import zlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from storage_core.checkpoint.checkpoint_files import encode_offset_checkpoint
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
)
from storage_core.kernels.crc32c import crc32c_by_table
from storage_core.maintenance.verification.findings import Code
from tests.pylog_spark.cli.prescriptions import Shell
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS, Accident
from tests.storage_core.maintenance.verification.log_root import NOW_MS, LogRoot, log_root

IS_WHOLE = os.environ.get("PYLOG_PRESCRIPTIONS") == "1"
SAMPLE = 20
# A bad block, and a file of the directory that is not what it was.
ONE_POWER_CUT = [
    (Code.BATCH_CRC_WRONG.value, "replication-zeroed"),
    (Code.BATCH_CRC_WRONG.value, "recovery-point-garbage"),
    ("first-batch-bad", "high-watermark-forgotten"),
]
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


def die(root: LogRoot) -> None:
    """Let the broker have died before anything was flushed."""
    (root.path / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    (root.path / RECOVERY_POINT_FILE).write_bytes(encode_offset_checkpoint({}))


def readable_batches(log: bytes) -> Iterator[bytes]:
    """Yield the bytes of every batch with a right checksum, wherever in a file it begins."""
    for at in range(len(log) - MAGIC_AT):
        magic = log[at + MAGIC_AT]
        (length,) = struct.unpack_from(">i", log, at + 8)
        end = at + 12 + length
        if magic > V2 or length < 10 or end > len(log):
            continue
        if magic < FIRST_LEGACY:
            (crc,) = struct.unpack_from(">I", log, at + 12)
            is_right = crc == zlib.crc32(log[at + MAGIC_AT : end])
        else:
            (crc,) = struct.unpack_from(">I", log, at + 17)
            is_right = crc == crc32c_by_table(np.frombuffer(log, np.uint8), at + 21, end)
        if is_right:
            yield log[at:end]


def contents(folder: Path, *suffixes: str) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.suffix in suffixes and path.is_file():
            with path.open("rb") as file:
                yield file.read(MOST_BYTES)


def lost(before: list[bytes], folder: Path) -> list[bytes]:
    """Return the batches that no log and no salvage has any more."""
    after = list(contents(folder, ".log", ".raw"))
    return [batch for batch in before if not any(batch in content for content in after)]


def hurt(root: LogRoot, names: tuple[str, ...], *, is_closed: bool) -> bool:
    """Let accidents happen; return whether each found what it works on."""
    if not is_closed:
        die(root)
    for name in names:
        try:
            HAPPENINGS[name](root)
        except (FileNotFoundError, FileExistsError):
            return False
    return True


def cases() -> list[tuple[tuple[str, ...], bool]]:
    singles = [(name,) for name in sorted(HAPPENINGS)]
    pairs = list(combinations(sorted(HAPPENINGS), 2))
    if IS_WHOLE:
        return [(names, is_closed) for names in (*singles, *pairs) for is_closed in (True, False)]
    dice = random.Random(31)
    drawn = [(names, dice.random() < 0.5) for names in (*singles, *dice.sample(pairs, SAMPLE))]
    return [*drawn, *((names, False) for names in ONE_POWER_CUT)]


@pytest.mark.parametrize(
    ("names", "is_closed"),
    cases(),
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else ("died", "closed")[value],
)
def test_no_record_is_lost_by_what_the_doctor_prints(tmp_path, pylog, names, is_closed):
    root = log_root(tmp_path / "log")
    if not hurt(root, names, is_closed=is_closed):
        pytest.skip("one accident took what the other works on")
    before = [batch for log in contents(root.path, ".log") for batch in readable_batches(log)]
    shell = Shell(pylog, NOW_MS, engine="local")
    _, answer = shell.ask(root.path)
    for command in answer["commands"]:
        shell.run(command, may_refuse=True)
        assert lost(before, tmp_path) == [], command
