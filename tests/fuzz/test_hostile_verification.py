"""Golden partitions with changed bytes, verified: always an answer, and changed bytes are found.

The default takes seconds and is the same in every run. ``PYLOG_FUZZ_ROUNDS`` says how many changed
partitions (``make fuzz``), ``PYLOG_FUZZ_SEED`` the first seed.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.maintenance.verification.files import sort_files
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Severity,
    VerifyOptions,
)
from storage_core.maintenance.verification.partition import (
    fold_partition,
    verify_segments,
)
from storage_core.maintenance.verification.segment_scan import SegmentFacts
from storage_core.store.local import LocalStore
from tests.fuzz.mutations import Mutator
from tests.kit.compare import read_tree
from tests.kit.golden_data import goldens

ROUNDS = int(os.environ.get("PYLOG_FUZZ_ROUNDS", "200"))
FIRST_SEED = int(os.environ.get("PYLOG_FUZZ_SEED", "0"))
BROKER = DirectoryContext(role=Role.BROKER, is_clean=True)
# What tells at least that the bytes of a batch are not what its writer wrote.
NOT_ABOUT_BYTES = {Code.TRANSACTION_OPEN, Code.TRANSACTION_HANGING, Code.PARTITION_METADATA_MISSING}
pytestmark = pytest.mark.timeout(max(300, ROUNDS))


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[Path]:
    top = tmp_path_factory.mktemp("originals")
    return [golden.unpack(top / golden.name) for golden in goldens("clean-*")]


def look(directory: Path, *, is_deep: bool, window_bytes: int) -> set[Code]:
    """Verify a partition as the tasks of a job do, and return what was found."""
    options = VerifyOptions(
        now_ms=0,
        is_deep=is_deep,
        window_bytes=window_bytes,
        max_record_bytes=1 << 20,
        max_batch_bytes=1 << 20,
    )
    store = LocalStore(directory)
    files = sort_files(store.list_files())
    facts, found = verify_segments(store, files, files.segments, BROKER, options)
    facts = [SegmentFacts.from_plain(json.loads(json.dumps(asdict(of)))) for of in facts]
    _, more = fold_partition(store, files, facts, BROKER, options, PartitionCheckpoints())
    assert all(finding.message for finding in found + more)
    assert len(found + more) < 1000
    return {f.code for f in found + more if f.severity.rank >= Severity.WARN.rank}


@pytest.mark.thorough
def test_changed_partitions_are_looked_at_to_the_end(originals, tmp_path: Path):
    found_in = 0
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        # Read by whoever finds this process dead.
        (tmp_path / "seed").write_text(str(seed))
        original = originals[seed % len(originals)]
        directory = tmp_path / original.name
        shutil.copytree(original, directory)
        Mutator(seed).mutate(directory)
        before = read_tree(directory)
        try:
            codes = look(directory, is_deep=True, window_bytes=(300, 8 << 20)[seed % 2])
            shallow = look(directory, is_deep=False, window_bytes=1000)
            # Beside a bad batch, what is known of its context depends on how far one looks.
            is_spoiled = any(code.name.startswith("BATCH_") for code in codes)
            assert shallow <= codes or codes - shallow or is_spoiled
        except BaseException as error:
            error.add_note(f"seed {seed}: {original.parent.name}")
            raise
        assert read_tree(directory) == before
        found_in += bool(codes - NOT_ABOUT_BYTES)
        shutil.rmtree(directory)
    if ROUNDS >= 100:
        # Some changes make another valid log; most do not.
        assert found_in > ROUNDS // 2
