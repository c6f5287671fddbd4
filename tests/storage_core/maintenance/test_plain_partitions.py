"""Partitions looked at together: the answers are those of looks at each alone."""

import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pylog_spark.operations.verify.driver import observe_roots
from pylog_spark.operations.verify.task import Stretch, verify_stretch, verify_stretches
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.kernels.file_starts import KIND, MOST_BYTES, OFFSET
from storage_core.maintenance.compaction.plan import weigh_dirt
from storage_core.maintenance.plain_inspection import inspect_partitions
from storage_core.maintenance.verification.findings import VerifyOptions
from storage_core.maintenance.verification.plain import verify_plain
from storage_core.reading.inspection import inspect_partition, inspect_root
from storage_core.records.file_starts import KINDS, Folders, FoundParts
from tests.bench.linked_root import NOTHING_DUE, write_linked_root
from tests.kit.builders import SOME_TIME_MS, some_batches
from tests.kit.directories import (
    ProducerSpec,
    SegmentSpec,
    encode_producer_snapshot,
    write_partition,
)

NOW = SOME_TIME_MS + 1_000_000
OPTIONS = VerifyOptions(now_ms=NOW)


def write_logs(root: Path) -> Path:
    """Write partitions of a stopped broker: a quiet one, one with more entries in its indexes, one
    whose oldest segment is empty, one of an idempotent producer."""
    write_linked_root(root, 3, segments=3, now_ms=NOW, kinds=NOTHING_DUE)
    busy = some_batches(count=40, records=2)
    more = some_batches(count=30, records=3, base_offset=80)
    for number, segments in enumerate(
        [
            [SegmentSpec(base_offset=0, batches=busy), SegmentSpec(base_offset=80, batches=more)],
            [SegmentSpec(base_offset=0, batches=()), SegmentSpec(base_offset=80, batches=more)],
            [SegmentSpec(base_offset=80, batches=more), SegmentSpec(base_offset=170, batches=())],
        ]
    ):
        partition = write_partition(root / f"busy-{number}", segments, index_interval_bytes=300)
        content = encode_producer_snapshot([ProducerSpec(producer_id=1)])
        (partition / f"{170:020}.snapshot").write_bytes(content)
        shutil.copy(root / "clean-00000-0" / "partition.metadata", partition)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_logs(tmp_path / "data")


def rows_together(root: Path) -> tuple[list[object], list[object]]:
    """Return what inspect says of all partitions, together and each alone."""
    view = inspect_root(root)
    together = inspect_partitions(view, view.entries, now_ms=NOW)
    alone = [inspect_partition(view, e, now_ms=NOW, weigh_dirt=weigh_dirt) for e in view.entries]
    return [list(row.items()) for row in together], [list(row.items()) for row in alone]


def verified_together(root: Path) -> tuple[list[str], list[str]]:
    """Return what verify says of all partitions, together and each alone."""
    roots = observe_roots([(str(root), Role.BROKER)], TopicFilter(), is_live=False)
    stretches = [Stretch(target=target, size_bytes=1) for target in roots.targets]
    together = verify_stretches(stretches, OPTIONS)
    alone = [row for stretch in stretches for row in verify_stretch(stretch, OPTIONS)]
    timeless = {"duration_ms": 0, "read_ms": 0, "largest_active_index": None}
    return (
        sorted(str(replace(row, **timeless)) for row in together),
        sorted(str(replace(row, **timeless)) for row in alone),
    )


def damage(root: Path, chance: random.Random) -> str:
    """Change one file of one partition in some way, and say how."""
    file = chance.choice(sorted(root.glob("*-*/*")))
    content = bytearray(file.read_bytes())
    kind = chance.choice(["flip", "cut", "add", "zeros", "remove", "name", "swap", "link"])
    file.unlink()  # it may have other names
    if kind == "flip" and content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del content[chance.randrange(len(content) + 1) :]
    elif kind == "add":
        content += chance.randbytes(chance.randrange(1, 30))
    elif kind == "zeros":
        content += bytes(chance.choice([8, 12, 24, 600]))
    elif kind == "swap":
        content = content[::-1]
    elif kind == "link":
        file.symlink_to("elsewhere")
        return f"{kind} {file}"
    if kind == "name":
        file = file.with_name(f"{chance.randrange(300):020}{file.suffix}")
    if kind != "remove":
        file.write_bytes(content)
    return f"{kind} {file}"


def test_partitions_are_told_together(root: Path):
    together, alone = rows_together(root)
    assert together == alone
    together, alone = verified_together(root)
    assert together == alone


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the files that are opened together by their names, of all partitions together."""
    counts: Counter[str] = Counter()
    read = Folders.read

    def counted(self: Folders, parts: NDArray[np.int64], *, most_of_folder: int) -> FoundParts:
        for kind, offset, most_bytes in parts[[KIND, OFFSET, MOST_BYTES]].T.tolist():
            name = KINDS[kind]
            counts[f"{offset:020}{name}" if name.startswith(".") else name] += most_bytes > 0
        return read(self, parts, most_of_folder=most_of_folder)

    monkeypatch.setattr(Folders, "read", counted)
    return counts


def test_an_inspection_opens_only_the_files_that_its_answer_needs(root: Path, opened: Counter[str]):
    view = inspect_root(root)
    entries = [entry for entry in view.entries if entry.name.startswith("clean-")]
    opened.clear()
    inspect_partitions(view, entries, now_ms=NOW)
    newest, end = f"{2:020}", f"{3:020}"
    bases = [f"{base:020}" for base in range(3)]
    assert +opened == dict.fromkeys(
        [
            "leader-epoch-checkpoint",
            *(f"{base}.timeindex" for base in bases),  # the newest time is in any of them
            f"{newest}.index",
            f"{newest}.log",
            f"{bases[0]}.log",
            f"{end}.snapshot",
        ],
        len(entries),
    )


def test_a_verification_opens_each_file_once(root: Path, opened: Counter[str]):
    roots = observe_roots([(str(root), Role.BROKER)], TopicFilter(), is_live=False)
    clean = [target for target in roots.targets if target.partition.topic.startswith("clean-")]
    opened.clear()
    assert len(verify_plain(clean, OPTIONS)) == len(clean)
    names = [path.name for path in Path(clean[0].directory).iterdir()]
    assert opened == dict.fromkeys(names, len(clean))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_damage_is_told_as_by_looks_at_each_alone(root: Path, seed: int):
    chance = random.Random(seed)
    for _ in range(4):
        what = damage(root, chance)
        together, alone = rows_together(root)
        assert together == alone, what
        together, alone = verified_together(root)
        assert together == alone, what
        shutil.rmtree(root.parent / "templates")
        shutil.rmtree(root)
        write_logs(root)
