"""Golden partitions with changed bytes, cleaned and read: an answer or an error of ours, always.

The default takes seconds and is the same in every run. ``PYLOG_FUZZ_ROUNDS`` says how many changed
partitions (``make fuzz``), ``PYLOG_FUZZ_SEED`` the first seed. A seed is enough to repeat one::

    PYLOG_FUZZ_SEED=1234 PYLOG_FUZZ_ROUNDS=1 pytest tests/fuzz
"""

import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

import pytest

from storage_core.errors import PylogError
from storage_core.filenames import SCRATCH_PREFIX
from storage_core.log.committed_view import load_committed_view
from storage_core.records.payload import Limits, decode_records
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store.base import FileReader
from storage_core.store.local import LocalStore
from tests.fuzz.mutations import Mutator
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import Cleaning, clean_spread, cleaning_of
from tests.kit.golden_data import goldens
from tests.kit.one_partition import recover_partition

ROUNDS = int(os.environ.get("PYLOG_FUZZ_ROUNDS", "200"))
FIRST_SEED = int(os.environ.get("PYLOG_FUZZ_SEED", "0"))
GOLDENS = goldens("clean-*")
LIMITS = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
# A seed that takes longer than this hangs; all of them together may take hours.
pytestmark = pytest.mark.timeout(max(300, ROUNDS))


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[tuple[Path, Cleaning]]:
    top = tmp_path_factory.mktemp("originals")
    return [
        (
            golden.unpack(top / golden.name),
            cleaning_of(golden).with_cleaner(max_decompressed_batch_bytes=1 << 20),
        )
        for golden in GOLDENS
    ]


def clean_or_refuse(directory: Path, cleaning: Cleaning, *, spread: bool) -> int | None:
    """Clean; return up to where, None for a refusal, which leaves every byte as it was.

    But for what loading repairs: a round finds that mended, whatever it finds then.
    """
    before = read_tree(directory)
    mended = before if spread else _mended(directory, cleaning)
    try:
        if spread:
            done = clean_spread(directory, cleaning)
            return done.next_offset if done else 0
        return cleaning.clean(directory).next_offset or 0
    except PylogError as refusal:
        text = str(refusal)
    after = read_tree(directory)
    # Spread over tasks, what one of them wrote is swept at the end of the run.
    kept = {name for name in after if not (spread and name.startswith(SCRATCH_PREFIX))}
    assert {name: after[name] for name in kept} in (before, mended)
    assert text
    return None


def _mended(directory: Path, cleaning: Cleaning) -> dict[str, bytes]:
    """Return what loading makes of a directory, as it is if it does not load."""
    copy = directory.parent / "mended" / directory.name
    shutil.copytree(directory, copy)
    with suppress(PylogError):
        recover_partition(
            copy,
            config=cleaning.config,
            cleaner=cleaning.cleaner,
            now_ms=cleaning.request.now_ms,
            log_start_offset=cleaning.request.checkpoints.log_start_offset or 0,
            clean_shutdown=True,
        )
    tree = read_tree(copy)
    shutil.rmtree(copy.parent)
    return tree


def read_everything(directory: Path) -> None:
    """Read transactions and all records, as the data source does, as far as that is possible."""
    store = LocalStore(directory)
    with suppress(PylogError):
        load_committed_view(store, now_ms=0)
    for path in sorted(directory.glob("*.log")):
        with suppress(PylogError), closing(store.open_file(path.name)) as reader:
            read_segment(reader)


def read_segment(reader: FileReader) -> None:
    for window in scan_windows(reader, window_bytes=300, crc=CrcCheck.NOTE, tail=Tail.STOP):
        for records in decode_records(window, window.batches.crc_ok == 1, LIMITS):
            columns = (records.keys(), records.values(), records.headers())
            assert {len(column) for column in columns} == {len(records)}


def check_result(directory: Path, cleaning: Cleaning, end_offset: int) -> None:
    """What a round wrote can be loaded and read by ourselves, checksums included."""
    log = cleaning.load(LocalStore(directory))
    for segment in log.segments[:-1]:
        if segment.base_offset < end_offset:
            with closing(LocalStore(directory).open_file(segment.log_file)) as reader:
                for _ in scan_windows(reader, crc=CrcCheck.RAISE, tail=Tail.RAISE):
                    pass


@pytest.mark.thorough
def test_changed_partitions_give_an_answer_or_an_error(originals, tmp_path: Path):
    outcomes = {True: 0, False: 0}
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        # Read by whoever finds this process dead.
        (tmp_path / "seed").write_text(str(seed))
        original, cleaning = originals[seed % len(originals)]
        directory = tmp_path / original.name
        shutil.copytree(original, directory)
        Mutator(seed).mutate(directory)
        try:
            read_everything(directory)
            is_spread = seed % 5 == 0 and cleaning.cleaner.dedupe_buffer_bytes == 134_217_728
            end_offset = clean_or_refuse(directory, cleaning, spread=is_spread)
            if end_offset is not None:
                check_result(directory, cleaning, end_offset)
                read_everything(directory)
            outcomes[end_offset is not None] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}: {original.parent.name}")
            raise
        shutil.rmtree(directory)
    if ROUNDS >= 100:
        # Neither is everything refused, nor nothing.
        assert min(outcomes.values()) > ROUNDS // 10, outcomes
