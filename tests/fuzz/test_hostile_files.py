"""Golden partitions after accidents, and small files with changed bytes: an answer or an error.

Every format and side file is changed: batches old and new, indexes, snapshots, epoch and metadata
files, checkpoints, leftovers. What is left is recovered, dumped, verified and read. Nothing may
crash, hang, raise what is no error of ours, or take more memory than the files are worth. What
recovery makes of it soon stays as it is when it is recovered again.

``PYLOG_FUZZ_ROUNDS`` says how many (``make fuzz``), ``PYLOG_FUZZ_SEED`` the first seed. A seed is
enough to repeat one::

    PYLOG_FUZZ_SEED=1234 PYLOG_FUZZ_ROUNDS=1 pytest tests/fuzz/test_hostile_files.py
"""

import contextlib
import io
import os
import random
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli.dump_files import DumpRequest, dump_path
from storage_core.catalog.roles import Role
from storage_core.checkpoint.broker_files import (
    encode_clean_shutdown,
    parse_clean_shutdown,
    parse_meta_properties,
)
from storage_core.checkpoint.checkpoints import (
    PartitionCheckpoints,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError
from storage_core.filenames import SNAPSHOT_SUFFIX
from storage_core.maintenance.recovery.partition import RecoverResult
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.maintenance.verification.log_directories import verify_log_directories
from storage_core.store.local import LocalStore
from tests.fuzz.mutations import Mutator
from tests.fuzz.test_hostile_partitions import read_everything
from tests.kit.compare import read_tree
from tests.kit.file_damage import Accident, Damage, damage
from tests.kit.golden_data import Golden, goldens
from tests.kit.one_partition import recover_partition, truncate_partition, verify_partition

ROUNDS = int(os.environ.get("PYLOG_FUZZ_ROUNDS", "100"))
FIRST_SEED = int(os.environ.get("PYLOG_FUZZ_SEED", "0"))
KINDS = ("recover", "load", "leftover", "overflow", "truncate", "clean")
DAY_MS = 86_400_000
# What a round may allocate: the golden files are small, a bomb in one of them may say anything.
CLEANER = CleanerConfig(max_decompressed_batch_bytes=1 << 20)
MAX_GROWTH_BYTES = 1 << 30
MOST_SUFFIXES = 6
pytestmark = pytest.mark.timeout(max(300, ROUNDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """An unpacked golden partition, and what it says of itself."""

    directory: Path
    config: LogConfig
    clock_ms: int
    end_offset: int


class Originals:
    """Goldens of every kind, the kinds by turns; unpacked when they are first wanted."""

    def __init__(self, top: Path) -> None:
        self._top = top
        groups = [goldens(f"{kind}-*") for kind in KINDS]
        turns = range(max(map(len, groups)))
        by_turns = [group[turn % len(group)] for turn in turns for group in groups]
        self._goldens = list(dict.fromkeys(by_turns))
        self._unpacked: dict[int, Original] = {}

    def of(self, seed: int) -> Original:
        """Return the one that a seed means."""
        number = seed % len(self._goldens)
        if number not in self._unpacked:
            self._unpacked[number] = original_of(self._goldens[number], self._top)
        return self._unpacked[number]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Originals:
    return Originals(tmp_path_factory.mktemp("originals"))


def original_of(golden: Golden, top: Path) -> Original:
    case: dict[str, Any] = golden.case
    settings = dict(case["config"])
    if "segment.bytes" in settings:  # smaller than a topic may say
        settings["internal.segment.bytes"] = settings.pop("segment.bytes")
    return Original(
        directory=golden.unpack(top / golden.name),
        config=LogConfig.from_topic_overrides({k: str(v) for k, v in settings.items()}),
        clock_ms=case["clock_ms"],
        end_offset=case.get("expected", {}).get("leo", 100),
    )


def spoil(directory: Path, dice: random.Random) -> None:
    """Let one to four accidents happen, and sometimes change batches under a right CRC."""
    for _ in range(dice.randint(1, 4)):
        accident = dice.choice(list(Accident))
        damage(directory, Damage(accident=accident, seed=dice.randrange(2**32)))
    if dice.random() < 0.4 and any(path.stat().st_size for path in directory.glob("*.log")):
        Mutator(dice.randrange(2**32)).mutate(directory)


def offset_of_interest(dice: random.Random, end_offset: int) -> int:
    return dice.choice((0, 0, end_offset // 2, end_offset, dice.randrange(end_offset + 10)))


def change_or_refuse(directory: Path, change: Callable[[], object]) -> object | None:
    """Return what a change says, None for a refusal, which leaves every byte as it was."""
    before = read_tree(directory)
    try:
        return change()
    except PylogError as refusal:
        text = str(refusal)
    assert text
    assert read_tree(directory) == before
    return None


def recover(directory: Path, original: Original, dice: random.Random) -> bool:
    log_start = dice.choice((0, 0, 0, offset_of_interest(dice, original.end_offset)))
    now_ms = original.clock_ms + dice.choice((0, 1, 2 * DAY_MS))

    def run(*, clean_shutdown: bool, recovery_point: int) -> RecoverResult:
        return recover_partition(
            directory,
            config=original.config,
            cleaner=CLEANER,
            now_ms=now_ms,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            clean_shutdown=clean_shutdown,
        )

    recovery_point = offset_of_interest(dice, original.end_offset)
    is_clean = dice.random() < 0.3
    result = change_or_refuse(
        directory, lambda: run(clean_shutdown=is_clean, recovery_point=recovery_point)
    )
    if not isinstance(result, RecoverResult):
        return False
    # A name with two suffixes of leftovers loses one of them each time.
    for _ in range(MOST_SUFFIXES):
        after = lasting(directory)
        try:
            result = run(clean_shutdown=True, recovery_point=result.log_end_offset)
        except PylogError:
            return True
        if lasting(directory) == after:
            return True
    raise AssertionError("recovering the result goes on changing it")


def lasting(directory: Path) -> dict[str, bytes]:
    """Return all files but snapshots: without any, a clean load begins with empty ones."""
    files = read_tree(directory)
    return {name: data for name, data in files.items() if not name.endswith(SNAPSHOT_SUFFIX)}


def truncate(directory: Path, original: Original, dice: random.Random) -> bool:
    to = offset_of_interest(dice, original.end_offset)
    result = change_or_refuse(
        directory,
        lambda: truncate_partition(
            directory,
            config=original.config,
            cleaner=CLEANER,
            now_ms=original.clock_ms,
            to=to,
        ),
    )
    return result is not None


def look(directory: Path, original: Original, dice: random.Random) -> None:
    """Dump, verify and read; none of them changes anything or raises what is no error of ours."""
    before = read_tree(directory)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(PylogError):
        dump_path(
            directory,
            DumpRequest(
                as_json=dice.choice((True, False)),
                committed_only=dice.choice((True, False)),
            ),
        )
    options = VerifyOptions(
        now_ms=original.clock_ms,
        is_deep=dice.choice((True, False)),
        is_live=dice.choice((True, False)),
        window_bytes=dice.choice((300, 1 << 20)),
        max_record_bytes=1 << 20,
        max_batch_bytes=1 << 20,
    )
    checkpoints = PartitionCheckpoints(
        recovery_point=offset_of_interest(dice, original.end_offset),
        high_watermark=offset_of_interest(dice, original.end_offset),
    )
    context = DirectoryContext(
        role=dice.choice((Role.BROKER, Role.MIRROR)), is_clean=dice.choice((True, False))
    )
    _, findings = verify_partition(LocalStore(directory), context, options, checkpoints)
    assert all(finding.message for finding in findings)
    read_everything(directory)
    assert read_tree(directory) == before


@pytest.mark.thorough
def test_spoiled_partitions_are_recovered_dumped_and_verified_or_refused(originals, tmp_path):
    outcomes = {True: 0, False: 0}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        # Read by whoever finds this process dead.
        (tmp_path / "seed").write_text(str(seed))
        dice = random.Random(seed)
        original = originals.of(seed)
        directory = tmp_path / original.directory.name
        shutil.copytree(original.directory, directory)
        try:
            spoil(directory, dice)
            look(directory, original, dice)
            change = truncate if dice.random() < 0.15 else recover
            is_changed = change(directory, original, dice)
            if is_changed and dice.random() < 0.25:
                look(directory, original, dice)
            outcomes[is_changed] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}: {original.directory.parent.name}")
            raise
        shutil.rmtree(directory)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
    assert grown < MAX_GROWTH_BYTES
    if ROUNDS >= 100:
        # Neither is everything refused, nor nothing.
        assert min(outcomes.values()) > ROUNDS // 20, outcomes


TEXTS: list[tuple[Callable[..., object], bytes]] = [
    (parse_offset_checkpoint, b"0\n2\ntopic 0 17\nother-topic 3 4000000000\n"),
    (parse_leader_epochs, b"0\n3\n0 0\n1 20\n5 1000\n"),
    (parse_partition_metadata, b"version: 0\ntopic_id: 3BBfqQbWRHy_3kC4SIuLMw"),
    (
        parse_meta_properties,
        b"#\nversion=1\ncluster.id=c\nnode.id=1\ndirectory.id=7wf1z8TnSBKKeDbBJPBSdA\n",
    ),
]


@pytest.mark.parametrize(
    ("parse", "text"), TEXTS, ids=["offsets", "epochs", "partition.metadata", "meta.properties"]
)
def test_changed_texts_are_read_or_refused(parse, text):
    refused = 0
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        data = Mutator(seed).change_bytes(text)
        try:
            parse(data, file="f")
        except PylogError as error:
            refused += bool(str(error))
        except BaseException as error:
            error.add_note(f"seed {seed}: {data!r}")
            raise
    assert parse(text, file="f")
    assert ROUNDS < 100 or refused


@pytest.fixture(scope="module")
def log_directory(tmp_path_factory) -> Path:
    """The files of a broker's log directory, and its partitions without theirs."""
    [case] = goldens("broker-dir")
    directory = case.unpack(tmp_path_factory.mktemp("broker"))
    for path in directory.rglob("*"):
        if path.is_file() and path.parent != directory:
            path.unlink()
    return directory


@pytest.mark.thorough
def test_a_log_directory_with_changed_checkpoints_is_dumped_and_verified(log_directory, tmp_path):
    names = [path.name for path in sorted(log_directory.iterdir()) if path.is_file()]
    found = 0
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        mutator, dice = Mutator(seed), random.Random(seed)
        directory = tmp_path / "data"
        shutil.copytree(log_directory, directory)
        path = directory / dice.choice(names)
        path.write_bytes(mutator.change_bytes(path.read_bytes()))
        try:
            _, findings = verify_log_directories([(str(directory), Role.BROKER)])
            found += bool(findings)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(PylogError):
                dump_path(path, DumpRequest(as_json=dice.choice((True, False))))
        except BaseException as error:
            error.add_note(f"seed {seed}: {path.name}")
            raise
        shutil.rmtree(directory)
    assert ROUNDS < 100 or found > ROUNDS // 10


def test_a_changed_marker_of_a_clean_shutdown_still_is_one():
    text = encode_clean_shutdown(7)
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        assert isinstance(parse_clean_shutdown(Mutator(seed).change_bytes(text)).broker_epoch, int)
