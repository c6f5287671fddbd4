"""What would be done to a mirror at a URL is what would be done to the directory; nothing is."""

import pyarrow as pa
import pytest

from pylog_spark.operations.recover.task import (
    RecoveredLog,
    RecoveryContext,
    RecoveryWork,
    observe_recovery,
    recover_whole,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import batches_of, row_reader
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext
from storage_core.store import open_object_store
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.tasks.observed import observed, run_context

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "retain-size-s501"]
# What a plan says of where it was made, and how long that took.
OWN = {"root", "directory", "plan", "loaded_files", "duration_ms"}


@pytest.fixture
def origin(tmp_path):
    return broker_directory(tmp_path / "log", NAMES)


@pytest.fixture
def mirror(origin, tmp_path):
    url = f"memory://reports-{tmp_path.name}/logs"
    store = open_object_store(url)
    for path in sorted(origin.path.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(origin.path).as_posix(), path.read_bytes())
    return url


def context(origin, root: str, **changes) -> RunContext:
    return run_context(
        root,
        origin.configs,
        JobOptions(now_ms=FIRST_ROUNDS_MS, max_truncate_bytes=1 << 30),
        **changes,
    )


def listed(root: str) -> list[pa.RecordBatch]:
    rows = [
        {
            "root": root,
            "topic": name,
            "partition": 0,
            "role": "mirror",
            "directory": f"{root}/{name}-0",
            "kind": "partition",
            "error_class": None,
            "error": None,
        }
        for name in NAMES
    ]
    return [pa.RecordBatch.from_pylist(rows)]


def rows_of(batches) -> list[dict]:
    return [
        {key: value for key, value in row.items() if key not in OWN}
        for batch in batches
        for row in batch.to_pylist()
    ]


def contents(root: str) -> dict[str, str]:
    return {info.key: info.etag for info in open_object_store(root).list()}


def test_compaction_and_retention_plan_the_same_for_a_mirror_at_a_url(origin, mirror):
    found, before = {}, contents(mirror)
    for root in (str(origin.path), mirror):
        run = context(origin, root)
        found[root] = (
            rows_of([observed(listed(root)[0].to_pylist(), run, Step.COMPACT)]),
            rows_of([observed(listed(root)[0].to_pylist(), run, Step.RETAIN)]),
        )
    assert found[mirror] == found[str(origin.path)]
    statuses = [row["status"] for rows in found[mirror] for row in rows]
    assert statuses.count("planned") == len(NAMES)
    assert contents(mirror) == before


def test_what_a_recovery_would_cut_of_a_mirror_at_a_url_is_reported(origin, mirror):
    key = f"{NAMES[0]}-0/00000000000000000000.log"
    store = open_object_store(mirror)
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 0xFF
    store.put(key, bytes(data))
    (origin.path / key).write_bytes(bytes(data))
    found, before = {}, contents(mirror)
    for root in (str(origin.path), mirror):
        run = context(origin, root, unclean_roots=frozenset({root}))
        looked = [row for b in observe_recovery(iter(listed(root)), run) for row in b.to_pylist()]
        works = [
            (
                row_reader(RecoveryWork)(row | {"ordinal": ordinal, "recovery_point": 0}),
                row["bytes"],
            )
            for ordinal, row in enumerate(looked)
        ]
        told = RecoveryContext(run=run, write=None)
        found[root] = rows_of(batches_of(RecoveredLog, recover_whole(works, told)))
    assert found[mirror] == found[str(origin.path)]
    assert {row["reason"] for row in found[mirror]} == {None, "CUTS_BELOW_HIGH_WATERMARK"}
    assert "00000000000000000000.log" in found[mirror][0]["cuts"]
    assert contents(mirror) == before
