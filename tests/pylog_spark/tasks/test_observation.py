"""One look for all steps: what it says of partitions together is what is said of each alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pylog_spark.operations import observation_task as observation
from pylog_spark.operations.observation_task import (
    SCHEMAS,
    ObservationContext,
    decode_steps,
    observe_steps,
)
from pylog_spark.operations.retain.task import observe_sweep
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.tasks.observe import Step, observe_partition
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.topic_catalog import TopicCatalog, TopicConfigSource, TopicEntry
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import (
    UPKEEP_FILES,
    Checkpoints,
    PartitionMetadata,
    encode_partition_metadata,
)
from storage_core.config import CleanerConfig
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    REPLICATION_FILE,
    TopicPartition,
    segment_file,
)
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    encode_producer_snapshot,
    write_partition,
)
from tests.kit.hostile_names import add_hostile_names
from tests.pylog_spark.tasks.observed import observed, run_context

NOW = 1_700_000_000_000
HEX = "0123456789abcdef0123456789abcdef"
ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
BASES = (0, 10, 20, 30)
DAMAGED = ("bad-transactions", "bad-end", "bad-epochs")
PLANS = (Step.RETAIN, Step.COMPACT, Step.SWEEP)


def batch(base_offset: int, *, age_ms: int) -> BatchSpec:
    records = (RecordSpec(key=b"k", value=b"v" * 50, timestamp=NOW - age_ms),)
    return BatchSpec(records=records, base_offset=base_offset)


def write_log(directory: Path) -> Path:
    """Four segments, the newest first a thousand milliseconds old, then by as much older."""
    segments = [
        SegmentSpec(
            base_offset=base,
            batches=(batch(base, age_ms=1000 * (len(BASES) - number)),),
            modified_ms=NOW - 500,
        )
        for number, base in enumerate(BASES)
    ]
    return write_partition(directory, segments)


def touch(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).touch()


def unlink(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).unlink()


def id_of(topic_id: str) -> Callable[[Path], object]:
    content = encode_partition_metadata(PartitionMetadata(topic_id=topic_id))
    return lambda directory: (directory / PARTITION_METADATA_FILE).write_bytes(content)


def empty_active(directory: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        (directory / segment_file(30, suffix)).write_bytes(b"")


def only_active(directory: Path) -> None:
    for path in directory.glob("0*"):
        if not path.name.startswith(segment_file(30, "")):
            path.unlink()


def abort(directory: Path) -> None:
    shutil.rmtree(directory)
    aborted = [AbortedTxnSpec(producer_id=1, first_offset=0, last_offset=0, last_stable_offset=1)]
    first = SegmentSpec(base_offset=0, batches=(batch(0, age_ms=9),), aborted=aborted)
    write_partition(directory, [first, SegmentSpec(base_offset=5, batches=(batch(5, age_ms=5),))])


def misplace_transactions(directory: Path) -> None:
    abort(directory)
    index = (directory / segment_file(0, ".txnindex")).read_bytes()
    (directory / segment_file(5, ".txnindex")).write_bytes(index)


def link(directory: Path) -> None:
    log = directory / segment_file(0, ".log")
    log.rename(directory.parent / "elsewhere")
    log.symlink_to(directory.parent / "elsewhere")


def snapshot(offset: int, *producers: ProducerSpec, content: bytes | None = None):
    """A producer snapshot at an offset, of some bytes or of some producers."""
    data = encode_producer_snapshot(producers) if content is None else content
    return lambda directory: (directory / segment_file(offset, ".snapshot")).write_bytes(data)


def writes(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(content)


def append(content: bytes, *, base_offset: int = 30) -> Callable[[Path], object]:
    """More bytes behind a segment's batches, the newest one's."""
    log = segment_file(base_offset, ".log")
    return lambda directory: writes(log, (directory / log).read_bytes() + content)(directory)


def misindex(*positions: int) -> Callable[[Path], object]:
    """An offset index of the newest segment that points elsewhere."""
    entries = [(number, position) for number, position in enumerate(positions)]
    return writes(segment_file(30, ".index"), np.array(entries, OFFSET_INDEX_ENTRY).tobytes())


def disorder(directory: Path) -> None:
    """More entries than a search looks at first, the last one not the largest."""
    entries = np.zeros(1200, OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = np.arange(1200)[::-1]
    entries["position"] = 7
    (directory / segment_file(30, ".index")).write_bytes(entries.tobytes())


# What is done to the partition of a topic, by its name.
CHANGES: dict[str, Callable[[Path], object]] = {
    "plain": lambda _: None,
    "emptied": empty_active,
    "alone": only_active,
    "aborted": abort,
    "deleted": touch(segment_file(3, ".log.deleted")),
    "cleaned": touch(segment_file(0, ".log.cleaned")),
    "swapped": touch(segment_file(0, ".log.swap")),
    "scratch": touch("pylog-scratch-x"),
    "notes": touch("notes.txt"),
    "off": touch("pylog-off"),
    "snapshot": touch(segment_file(30, ".snapshot")),
    "snapshot-at-end": snapshot(31, ProducerSpec(producer_id=1, last_timestamp=NOW)),
    "snapshot-before": snapshot(20, ProducerSpec(producer_id=1, last_timestamp=NOW)),
    "snapshot-beyond": snapshot(40),
    "snapshot-broken": snapshot(31, content=b"?" * 20),
    "transaction": snapshot(31, ProducerSpec(producer_id=1, current_txn_first_offset=20)),
    "orphan": touch(segment_file(3, ".index")),
    "unindexed": unlink(segment_file(10, ".index")),
    "untimed": unlink(segment_file(0, ".timeindex")),
    "short": touch("7.log"),
    "ancient": touch(segment_file(3, ".kafka")),
    "huge": touch("99999999999999999999.log"),
    "same-id": id_of(ID),
    "other-id": id_of(OTHER_ID),
    "bad-id": lambda directory: (directory / PARTITION_METADATA_FILE).write_bytes(b"?"),
    "linked": link,
    # What no listing shows.
    "bad-transactions": misplace_transactions,
    "bad-end": lambda directory: (directory / segment_file(30, ".log")).write_bytes(bytes(80)),
    "bad-tail": append(bytes(8) + b"\0\0\0\1" + bytes(90)),
    "torn-tail": append(b"torn"),
    "long-index": writes(segment_file(30, ".timeindex"), bytes(2**24)),
    "bad-index": misindex(5),
    "bad-indexes": misindex(0, 40),
    "bad-order": disorder,
    "bad-epochs": writes(LEADER_EPOCH_FILE, b"?"),
    "negative-epochs": writes(LEADER_EPOCH_FILE, b"0\n1\n-1 0\n"),
    "no-epochs": unlink(LEADER_EPOCH_FILE),
    "no-transactions": touch(segment_file(0, ".txnindex")),
    "vanished": shutil.rmtree,
    "empty": lambda directory: [path.unlink() for path in directory.iterdir()],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A partition for each change, and directories of all kinds."""
    root = tmp_path_factory.mktemp("log")
    for topic in CHANGES:
        write_log(root / f"{topic}-0")
    write_log(root / f"plain-1.{HEX}-future")
    for name in (
        f"plain-2.{HEX}-delete",
        f"plain-3.{HEX}-stray",
        "__cluster_metadata-0",
        "foreign",
    ):
        (root / name).mkdir()
    (root / f"plain-3.{HEX}-stray" / segment_file(0, ".log.deleted")).touch()
    (root / "pointer-0").symlink_to(root / "plain-0")
    add_hostile_names(root, "short-0")
    return root


@pytest.fixture(scope="module")
def partitions(root: Path) -> list[dict[str, Any]]:
    """The rows of ``schemas.PARTITION``, listed before some directories change."""
    listed = list_partitions(str(root), "broker", TopicFilter())
    for topic, change in CHANGES.items():
        change(root / f"{topic}-0")
    usual = {"error_class": None, "error": None}
    failed = {"root": str(root), "role": "broker", "directory": str(root)}
    failed |= {"error_class": "StorageError", "error": "cannot be listed"}
    return [usual | row for row in listed] + [usual | failed]


def context_of(root: Path, settings: dict[str, str], **changes: Any) -> RunContext:
    entries = {
        topic: TopicEntry(
            topic=topic,
            topic_id=ID,
            config_overrides=settings,
            source=TopicConfigSource.CLUSTER_METADATA,
        )
        for topic in (*CHANGES, "pointer")
    }
    catalogs = {str(root): TopicCatalog(topics=entries)}
    return run_context(str(root), {}, JobOptions(now_ms=NOW), **{"catalogs": catalogs} | changes)


def alone(step: Step, row: dict[str, Any], context: ObservationContext, checkpoints) -> dict:
    """What is said of one partition by those who look at it alone."""
    files = dict.fromkeys(("file_names", "file_bytes", "file_times_ms", "file_etags"))
    if step is Step.COMPACT:
        found = observe_partition(files | row, context.run, lambda _: checkpoints)
    else:
        found = observe_sweep(files | row, context.sweep(step), lambda _: checkpoints)
    (told,) = rows_to_batch(SCHEMAS[step], [found]).to_pylist()
    return told


def assert_same(partitions, context: ObservationContext, checkpoints: Checkpoints) -> set:
    """Hold what is said of all partitions together against what is said of each."""
    pieces = list(observe_steps(iter([rows_to_batch(PARTITION, partitions)]), context))
    table = pa.Table.from_batches(pieces, OBSERVED)
    seen = set()
    for step in PLANS:
        told = {row["directory"]: row for row in decode_steps(table, step).to_pylist()}
        for row in rows_to_batch(PARTITION, partitions).to_pylist():
            wanted = alone(step, row, context, checkpoints)
            found = told.pop(row["directory"])
            assert {**found, "duration_ms": 0} == {**wanted, "duration_ms": 0}
            seen.add((step, wanted["status"], wanted["reason"]))
        assert told == {}
    return seen


small = st.integers(-2, 45) | st.none()
marks = st.dictionaries(st.sampled_from(sorted(CHANGES)), st.tuples(small, small, small))


@pytest.mark.thorough
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.generate],  # a failure names one partition and one step, as it is
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    usual=st.tuples(small, small, small),
    single=marks,
    policy=st.sampled_from(["delete", "compact", "compact,delete"]),
    retention_ms=st.sampled_from([-1, 0, 2500, 10_000, 2**63 - 1]),
    retention_bytes=st.sampled_from([-1, 0, 200, 300, 10_000]),
    ratio=st.sampled_from(["0", "0.4", "1"]),
    lag_ms=st.sampled_from([0, 0, 0, 2500]),
    most_lag_ms=st.sampled_from([2**63 - 1, 2**63 - 1, 2500, 10_000]),
    is_log_end=st.booleans(),
)
def test_together_and_alone_the_same_is_said(
    root, partitions, monkeypatch, usual, single, policy, retention_ms, retention_bytes, ratio,
    lag_ms, most_lag_ms, is_log_end,
):  # fmt: skip
    config = {
        "cleanup.policy": policy,
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "min.cleanable.dirty.ratio": ratio,
        "min.compaction.lag.ms": str(lag_ms),
        "max.compaction.lag.ms": str(most_lag_ms),
    }
    columns: list[dict[TopicPartition, int]] = [{}, {}, {}]
    for topic in CHANGES:
        for column, value in zip(columns, single.get(topic, usual), strict=True):
            if value is not None:
                column[TopicPartition(topic, 0)] = value
    checkpoints = Checkpoints(entries=dict(zip(UPKEEP_FILES, columns, strict=True)))
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: checkpoints)
    source = HighWatermarkSource.LOG_END if is_log_end else HighWatermarkSource.CHECKPOINT
    options = JobOptions(now_ms=NOW, high_watermark=source, dry_run=True)
    run = context_of(root, config, options=options)
    context = ObservationContext(
        run=run,
        steps=frozenset(Step),
        excluded=frozenset({f"{root}/plain-0"}),
    )
    assert_same(partitions, context, checkpoints)


def marks_at(value: int) -> Checkpoints:
    marks = {TopicPartition(topic, 0): value for topic in CHANGES}
    return Checkpoints(entries={REPLICATION_FILE: marks})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"remote_roots": "all"}, id="remote storage"),
        pytest.param({"unclean_roots": "all"}, id="unclean"),
        pytest.param({"catalogs": "none"}, id="no config"),
        pytest.param(
            {"options": JobOptions(now_ms=NOW, cleaner=CleanerConfig(enabled=False))},
            id="no cleaner",
        ),
    ],
)
def test_whatever_keeps_a_run_away_is_said_the_same(root, partitions, monkeypatch, changes):
    known = {"all": frozenset({str(root)}), "none": {str(root): TopicCatalog()}}
    changes = {name: known.get(v, v) if isinstance(v, str) else v for name, v in changes.items()}
    checkpoints = marks_at(31)
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: checkpoints)
    run = context_of(root, {"cleanup.policy": "compact"}, **changes)
    assert_same(partitions, ObservationContext(run=run, steps=frozenset(Step)), checkpoints)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_an_entry_of_minus_one_is_an_entry(root, partitions, monkeypatch, policy):
    marks = {TopicPartition(topic, 0): -1 for topic in CHANGES}
    checkpoints = Checkpoints(entries=dict.fromkeys(UPKEEP_FILES, marks))
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: checkpoints)
    config = {"cleanup.policy": policy, "retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    context = ObservationContext(run=context_of(root, config), steps=frozenset(Step))
    assert_same(partitions, context, checkpoints)


def test_nothing_is_opened_alone_where_everything_is_kept(root, partitions, monkeypatch):
    """Else a night would cost what it did before."""
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: marks_at(31))
    opened = []
    for name in ("observe_partition", "observe_sweep"):
        monkeypatch.setattr(
            observation, name, lambda row, *_: opened.append(row["directory"]) or {}
        )
    usual = ("plain", "emptied", "alone", "snapshot-at-end", "same-id")
    names = {f"{topic}-0" for topic in usual}
    chosen = [row for row in partitions if Path(row["directory"]).name in names]
    assert len(chosen) == len(usual)
    for step, config in [
        (Step.RETAIN, {"cleanup.policy": "delete", "retention.ms": "100000"}),
        (Step.SWEEP, {"cleanup.policy": "compact,delete", "retention.ms": "100000"}),
        (Step.COMPACT, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}),
    ]:
        table = observed(chosen, context_of(root, config), step)
        assert set(table["status"].to_pylist()) == {"skipped"}
        assert table.num_rows == len(chosen)
    assert opened == []


@pytest.mark.thorough
def test_nothing_is_opened_alone_where_segments_expire(root, partitions, monkeypatch):
    checkpoints = marks_at(31)
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: checkpoints)
    names = [f"{topic}-0" for topic in ("plain", "snapshot-at-end", "same-id")]
    chosen = [row for row in partitions if Path(row["directory"]).name in names]
    assert len(chosen) == len(names)
    for limits, removed in [
        ({"retention.ms": "2500"}, [0, 10]),
        ({"retention.ms": "3500", "retention.bytes": "300"}, [0]),
        ({"retention.bytes": "0"}, []),  # all of them: who rolls looks at each alone
    ]:
        for is_dry in (False, True):
            options = JobOptions(now_ms=NOW, dry_run=is_dry)
            config = {"cleanup.policy": "delete", "retention.ms": "-1"} | limits
            run = context_of(root, config, options=options)
            context = ObservationContext(run=run, steps=frozenset(Step))
            assert_same(chosen, context, checkpoints)
            with monkeypatch.context() as patch:
                patch.setattr(observation, "observe_sweep", lambda *_: {"reason": "ALONE"})
                table = observed(chosen, run, Step.RETAIN)
            assert table["reason"].to_pylist() == [None if removed else "ALONE"] * len(names)
            if removed:
                assert table["removed"].to_pylist() == [removed] * len(names)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            writes(
                segment_file(0, ".timeindex"),
                np.array([(NOW - 9000, 0)], TIME_INDEX_ENTRY).tobytes(),
            ),
            id="an entry for no batch",
        ),
        pytest.param(
            writes(segment_file(0, ".log"), encode_batch(batch(0, age_ms=1))), id="young records"
        ),
        pytest.param(append(b"torn", base_offset=0), id="a torn tail"),
        pytest.param(
            append(encode_batch(batch(1, age_ms=1)), base_offset=0),
            id="a young batch behind the newest that the index knows",
        ),
        pytest.param(
            writes(segment_file(0, ".index"), np.array([(0, 5)], OFFSET_INDEX_ENTRY).tobytes()),
            id="an index that points elsewhere",
        ),
        pytest.param(writes(segment_file(0, ".timeindex"), b""), id="no entry, and an old file"),
        pytest.param(
            writes(segment_file(30, ".index"), bytes(2**24)),
            id="an index of the active segment that is too long",
        ),
        pytest.param(id_of("?"), id="a topic id that no broker reads"),
    ],
)
def test_where_records_contradict_an_age_the_same_is_said(tmp_path, monkeypatch, change):
    directory = write_log(tmp_path / "plain-0")
    change(directory)
    for suffix in (".log", ".timeindex"):
        os.utime(directory / segment_file(0, suffix), ns=(0, 0))
    checkpoints = marks_at(31)
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: checkpoints)
    partitions = [
        {"error_class": None, "error": None} | row
        for row in list_partitions(str(tmp_path), "broker", TopicFilter())
    ]
    settings = {"plain": {"cleanup.policy": "delete", "retention.ms": "2500"}}
    catalogs = {str(tmp_path): TopicCatalog(explicit=settings)}
    run = context_of(tmp_path, {}, catalogs=catalogs)
    assert_same(partitions, ObservationContext(run=run, steps=frozenset(Step)), checkpoints)


def test_damage_that_no_listing_shows_is_told_where_nothing_is_due(root, partitions, monkeypatch):
    monkeypatch.setattr(observation, "root_checkpoints", lambda _: marks_at(10))
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    table = observed(partitions, context_of(root, config), Step.COMPACT)
    told = {Path(row["directory"]).name.removesuffix("-0"): row for row in table.to_pylist()}
    assert told["plain"]["reason"] == "RATIO_BELOW_MINIMUM"
    assert {topic: (told[topic]["status"], told[topic]["reason"]) for topic in DAMAGED} == {
        "bad-transactions": ("skipped", "RECOVERY_REQUIRED"),
        "bad-end": ("failed", None),
        "bad-epochs": ("failed", None),
    }


def test_what_waits_for_its_end_is_what_a_purge_hears_of(root, partitions):
    table = observed(partitions, context_of(root, {}), Step.PURGE)
    assert {Path(place).name for place in table["directory"].to_pylist()} == {
        "deleted-0",
        "vanished-0",
        "pointer-0",
        f"plain-2.{HEX}-delete",
        f"plain-3.{HEX}-stray",
        root.name,
        *(row["directory"].rpartition("/")[2] for row in partitions if "\\xff" in row["directory"]),
        *(["short-0"] if (root / "short-0" / "\udcff.deleted").exists() else []),
    }
    assert table.schema.names == PARTITION.names
