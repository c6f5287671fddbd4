"""Reads of a partition that a commit is changing, or whose commit was cut short."""

import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylog_spark.source.options import parse_options
from storage_core.commit import CommitPlan, RenameFile, commit
from storage_core.errors import ChangedWhileReadError, InvalidNameError, MissingSegmentError
from storage_core.filenames import log_file, segment_file
from storage_core.log.log_loader import LogLoader
from storage_core.reading import planning
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import read_range
from storage_core.store.local import LocalStore
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_cleaning import cleaning_of, prepare
from tests.kit.golden_data import Golden
from tests.kit.partition_views import data_records
from tests.storage_core.maintenance.compaction.hand_made import (
    batch,
    cleaning,
    produced,
    record,
    write_log,
)

NOW_MS = 1_800_000_000_000
COMMITTED = {"kafka.isolation.level": "read_committed"}


def offsets_of(path: Path, **options: str) -> list[int]:
    wanted = plan_ranges(parse_options({"path": str(path), **options}).request, now_ms=NOW_MS)
    return [o for part in wanted for b in read_range(part) for o in b.column("offset").to_pylist()]


def one_group(directory: Path) -> Path:
    """Four closed segments of ten records that one swap replaces by one of eight."""
    keys = [b"a", b"b", b"c"]
    return write_log(
        directory,
        *[
            [
                batch(10 * n, *(record(key, b"%d" % n) for key in keys)),
                batch(10 * n + 3, record(b"only %d" % n), record(b"b", b"later %d" % n)),
                produced(10 * n + 5, *(record(b"p", b"%d" % i) for i in range(5))),
            ]
            for n in range(4)
        ],
    )


def steps_of(plan: CommitPlan, directory: Path) -> Iterator[int]:
    """Apply a plan one change at a time; yields after each, and before the first."""
    yield 0
    for number, operation in enumerate(plan.operations, 1):
        commit(CommitPlan(location=str(directory), operations=(operation,)), LocalStore(directory))
        yield number


@pytest.mark.parametrize("range_bytes", [1, 1 << 30], ids=["a segment each", "one range"])
@pytest.mark.parametrize("options", [{}, COMMITTED], ids=["everything", "committed"])
def test_after_every_change_of_a_commit_there_are_the_rows_before_or_the_rows_after(
    tmp_path, range_bytes: int, options: dict[str, str]
):
    options = options | {"maxPartitionBytes": str(range_bytes)}
    directory = one_group(tmp_path / "t-0")
    before = offsets_of(directory, **options)
    plan = prepare(directory, cleaning()).commit_of()
    seen = [offsets_of(directory, **options) for _ in steps_of(plan, directory)]
    after = seen[-1]
    assert (len(before), len(after)) == (40, 8)
    turn = seen.index(after)
    assert seen == [before] * turn + [after] * (len(seen) - turn)
    decisive = plan.operations[turn - 1]
    assert isinstance(decisive, RenameFile)
    assert decisive.target.endswith(".swap")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["clean-group-all-s211", "clean-txn-none-s101-2"])
def test_a_commit_that_was_cut_short_reads_as_a_load_leaves_it(tmp_path, name: str):
    golden = Golden(name)
    directory = golden.unpack(tmp_path / "original")
    round_ = cleaning_of(golden)
    plan = prepare(directory, round_, scratch=tmp_path).commit_of()
    for step in steps_of(plan, directory):
        copy = tmp_path / str(step) / directory.name
        shutil.copytree(directory, copy)
        found = offsets_of(copy)
        store = LocalStore(copy)
        loader = LogLoader(
            store,
            config=round_.config,
            cleaner=round_.cleaner,
            now_ms=NOW_MS,
            clean_shutdown=True,
        )
        loaded = loader.load().close()
        commit(loaded.plan, store)
        assert found == [record.offset for record in data_records(copy)], step
        shutil.rmtree(copy.parent)


@pytest.mark.thorough
@pytest.mark.parametrize("range_bytes", [1, 1 << 30], ids=["a segment each", "one range"])
def test_what_changes_between_planning_and_reading_is_read_as_it_was_or_refused(
    tmp_path, range_bytes: int
):
    directory = one_group(tmp_path / "t-0")
    plan = prepare(directory, cleaning()).commit_of()
    planned = []
    seen, refusals = set(), set()
    options = {"path": str(directory), "maxPartitionBytes": str(range_bytes)}
    for _ in steps_of(plan, directory):
        planned.append(plan_ranges(parse_options(options).request, now_ms=NOW_MS))
        for wanted in planned:
            try:
                rows = sum(b.num_rows for part in wanted for b in read_range(part))
            except ChangedWhileReadError as error:
                refusals.add(error.file)
                rows = -1
            seen.add(rows)
    assert seen == {40, 8, -1}
    assert all(file.startswith(str(directory)) for file in refusals)


def test_a_range_that_is_being_read_goes_on_with_the_files_that_it_began_with(tmp_path):
    directory = one_group(tmp_path / "t-0")
    (wanted,) = plan_ranges(parse_options({"path": str(directory)}).request, now_ms=NOW_MS)
    reading = read_range(wanted)
    rows = next(reading).num_rows
    for log in sorted(directory.glob("*.log")):
        log.rename(f"{log}.deleted")  # as a broker's cleaner does
    assert rows + sum(b.num_rows for b in reading) == 40


@pytest.mark.thorough
def test_beside_a_round_that_is_running_there_are_the_rows_before_or_after_or_a_refusal(tmp_path):
    seen: list[int] = []
    refused: list[str] = []
    directory = tmp_path / "t-0"
    is_done = threading.Event()

    def read_on() -> None:
        while not is_done.is_set():
            try:
                seen.append(len(offsets_of(directory)))
            except ChangedWhileReadError as error:
                refused.append(str(error))

    for _ in range(8):
        one_group(directory)
        is_done.clear()
        reader = threading.Thread(target=read_on)
        reader.start()
        cleaning().clean(directory)
        is_done.set()
        reader.join()
        seen.append(len(offsets_of(directory)))
        shutil.rmtree(directory)
    assert set(seen) == {40, 8}
    assert all(str(directory) in text for text in refused)


@pytest.mark.thorough
def test_a_retention_that_raises_the_log_start_and_then_removes_is_seen_whole_or_not_at_all(
    gapped, monkeypatch
):
    """It strikes between any two of the reader's steps: each is given the chance to see it."""
    seen = set()
    original = planning._list_log
    start_file = gapped.parent / "log-start-offset-checkpoint"

    def removing(count: int) -> None:
        start_file.write_text("0\n1\nt 0 30\n")
        for base in (0, 10, 20)[:count]:
            lose(gapped, base)

    for count in range(4):
        backup = gapped.parent / f"backup-{count}"
        shutil.copytree(gapped, backup)
        for is_before in (True, False):

            def list_log(*arguments, count=count, is_before=is_before):
                if is_before:
                    removing(count)
                found = original(*arguments)
                if not is_before:
                    removing(count)
                return found

            monkeypatch.setattr(planning, "_list_log", list_log)
            seen.add(tuple(offsets_of(gapped)))
            shutil.rmtree(gapped)
            shutil.copytree(backup, gapped)
            start_file.unlink()
    assert seen == {tuple(range(30, 40))}


def test_an_unfinished_file_without_a_segment_is_refused_by_name(tmp_path):
    directory = one_group(tmp_path / "t-0")
    (directory / "strange.log.swap").write_bytes(b"")
    with pytest.raises(InvalidNameError, match=r"strange\.log\.swap"):
        offsets_of(directory)


@pytest.mark.item("FLT-15")
def test_appends_after_planning_do_not_show(tmp_path):
    batches = some_batches(count=4)
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    wanted = plan_ranges(parse_options({"path": str(directory)}).request, now_ms=NOW_MS)
    whole = (directory / log_file(0)).read_bytes()
    with (directory / log_file(0)).open("ab") as log:
        log.write(whole)
    assert sum(b.num_rows for part in wanted for b in read_range(part)) == 4


@pytest.fixture
def gapped(tmp_path: Path) -> Path:
    """Segments at 0, 10, 20 and 30 of ten records each, without a trace of compaction."""
    return write_partition(
        tmp_path / "t-0",
        [
            SegmentSpec(base_offset=n, batches=some_batches(count=5, records=2, base_offset=n))
            for n in (0, 10, 20, 30)
        ],
        index_interval_bytes=100,
    )


def lose(directory: Path, base_offset: int) -> None:
    for path in directory.glob(segment_file(base_offset, ".*")):
        path.unlink()


@pytest.mark.item("FLT-05")
@pytest.mark.parametrize("range_bytes", [1, 1 << 30], ids=["a segment each", "one range"])
def test_a_segment_that_is_missing_in_the_middle_is_refused_by_name(
    gapped, caplog, range_bytes: int
):
    options = {"maxPartitionBytes": str(range_bytes)}
    lose(gapped, 10)
    with pytest.raises(MissingSegmentError) as refused:
        offsets_of(gapped, **options)
    assert "offsets 10 to 19 are missing" in str(refused.value)
    assert log_file(0) in str(refused.value)
    assert "failOnDataLoss=false" in str(refused.value)
    with caplog.at_level(logging.WARNING):
        rest = offsets_of(gapped, **options, failOnDataLoss="false")
    assert rest == [*range(10), *range(20, 40)]
    assert "offsets 10 to 19 are missing" in caplog.text


@pytest.mark.parametrize(
    ("start", "end", "is_refused"),
    [(0, 10, False), (20, 40, False), (12, 15, True), (5, 11, True), (19, 21, True)],
)
def test_a_gap_concerns_those_who_ask_for_its_offsets(gapped, start, end, is_refused):
    lose(gapped, 10)
    said = {
        "startingOffsets": json.dumps({"t": {"0": start}}),
        "endingOffsets": json.dumps({"t": {"0": end}}),
    }
    if is_refused:
        with pytest.raises(MissingSegmentError):
            offsets_of(gapped, **said)
    else:
        assert offsets_of(gapped, **said) == list(range(start, end))


def test_gaps_are_normal_up_to_where_a_cleaner_has_been(gapped):
    lose(gapped, 10)
    checkpoint = gapped.parent / "cleaner-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 20\n")
    assert offsets_of(gapped) == [*range(10), *range(20, 40)]
    checkpoint.write_text("0\n1\nt 0 10\n")
    with pytest.raises(MissingSegmentError):
        offsets_of(gapped)


def test_gaps_beside_traces_of_compaction_are_normal(gapped):
    lose(gapped, 10)
    # The first segment has lost its second batch, as a cleaner takes it.
    batches = some_batches(count=5, records=2)
    write_partition(gapped, [SegmentSpec(base_offset=0, batches=[batches[0], *batches[2:]])])
    assert offsets_of(gapped) == [0, 1, *range(4, 10), *range(20, 40)]


@pytest.mark.thorough
def test_gaps_of_a_topic_that_the_clusters_metadata_calls_compacted_are_normal(gapped, tmp_path):
    lose(gapped, 10)
    broker = Golden("broker-dir").unpack(tmp_path / "broker")
    shutil.copytree(broker / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    with pytest.raises(MissingSegmentError):
        offsets_of(gapped)
    compacted = gapped.rename(tmp_path / "compacted-0")
    assert offsets_of(compacted) == [*range(10), *range(20, 40)]


@pytest.mark.parametrize("damage", ["gone", "emptied"])
def test_a_log_that_is_lost_beside_its_indexes_is_refused_of_any_topic(gapped, damage):
    (gapped.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    log = gapped / log_file(20)
    if damage == "gone":
        log.unlink()
    else:
        log.write_bytes(b"")
    with pytest.raises(MissingSegmentError, match="offsets 20 to 29 are missing"):
        offsets_of(gapped)
    assert offsets_of(gapped, failOnDataLoss="false") == [*range(20), *range(30, 40)]
    said = {"startingOffsets": '{"t":{"0":30}}'}
    assert offsets_of(gapped, **said) == list(range(30, 40))


def test_the_last_log_lost_beside_its_indexes_is_refused(gapped):
    (gapped / log_file(30)).unlink()
    with pytest.raises(MissingSegmentError, match="offsets 30 to the end are missing"):
        offsets_of(gapped)


def test_segments_that_compaction_emptied_are_no_gap(gapped):
    for suffix in (".log", ".index", ".timeindex"):
        (gapped / segment_file(10, suffix)).write_bytes(b"")
    assert offsets_of(gapped) == [*range(10), *range(20, 40)]


def test_a_deletion_that_was_cut_short_loses_nothing(gapped):
    """The log has its new name, its indexes have not yet; and below the first segment."""
    for base in (0, 30):
        log = gapped / log_file(base)
        log.rename(f"{log}.deleted")
    assert offsets_of(gapped) == list(range(10, 30))
