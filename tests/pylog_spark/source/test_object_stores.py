"""Reading mirrors at URLs and managed roots: the records of a local directory, and no others."""

import pickle
import sys
import threading
from dataclasses import replace

import pytest

from pylog_spark.source.options import parse_options
from pylog_spark.source.reader import KafkaLogReader
from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError
from storage_core.reading import planning
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import read_range
from storage_core.roots.open_root import find_root, open_root
from storage_core.store import open_object_store
from tests.kit.wrapped_objects import CountingObjects
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161"]
NAME = NAMES[0]
NOW_MS = 1_800_000_000_000


@pytest.fixture
def origin(tmp_path):
    return broker_directory(tmp_path / "log", NAMES)


@pytest.fixture
def mirror(origin, tmp_path):
    """The same directory at a URL."""
    url = f"memory://mirror-{tmp_path.name}/logs"
    store = open_object_store(url)
    for path in origin.path.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(origin.path).as_posix(), path.read_bytes())
    return url


@pytest.fixture
def twin(origin, tmp_path):
    return managed_twin(origin, tmp_path / "managed")


def ranges(path, **options):
    wanted = plan_ranges(parse_options({"path": str(path), **options}).request, now_ms=NOW_MS)
    return pickle.loads(pickle.dumps(wanted))


def rows_of_view(path, view):
    options = {"path": str(path), "view": view, "subscribe": NAME}
    reader = KafkaLogReader(parse_options(options))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def records(wanted):
    return [row for one in wanted for batch in read_range(one) for row in batch.to_pylist()]


def test_indexes_that_a_sync_brought_before_their_log_are_warned_of_in_a_mirror(mirror, caplog):
    expected = records(ranges(mirror))
    index = f"{NAME}-0/00000000000000999999.index"
    open_object_store(mirror).put(index, b"")
    assert records(ranges(mirror)) == expected
    assert "offsets 999999 to the end are missing" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_mirror_at_a_url_shows_the_records_of_the_directory(origin, mirror, isolation):
    options = {"kafka.isolation.level": isolation, "includeHeaders": "true"}
    expected = records(ranges(origin.path, **options))
    assert len(expected) > 100
    assert records(ranges(mirror, **options)) == expected
    assert records(ranges(f"{mirror}/{NAME}-0", **options)) == [
        row for row in expected if row["topic"] == NAME
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_managed_root_shows_the_records_of_the_directory(origin, twin, isolation):
    options = {"kafka.isolation.level": isolation}
    expected = records(ranges(origin.path, **options))
    for path in (twin.location, f"managed+{twin.location}"):
        assert records(ranges(path, **options)) == expected
    for path in (f"{twin.location}/{NAME}-0", twin.directory(NAME)):
        assert records(ranges(path)) == [row for row in expected if row["topic"] == NAME]


def test_offsets_and_times_choose_the_same_records_everywhere(origin, mirror, twin):
    first = records(ranges(origin.path, subscribe=NAME))
    middle = first[len(first) // 2]
    at_ms = int(middle["timestamp"].timestamp() * 1000)
    for options in (
        {"startingOffsets": f'{{"{NAME}": {{"0": {middle["offset"]}}}}}', "subscribe": NAME},
        {"startingTimestamp": str(at_ms), "subscribe": NAME},
        {"endingTimestamp": str(at_ms), "subscribe": NAME},
    ):
        expected = records(ranges(origin.path, **options))
        assert 0 < len(expected) < len(first)
        assert records(ranges(mirror, **options)) == expected
        assert records(ranges(twin.location, **options)) == expected


@pytest.mark.thorough
def test_a_query_that_was_planned_before_a_commit_reads_on_undisturbed(twin):
    before = ranges(twin.location)
    expected = records(before)
    assert {one.directory.rpartition("#")[2] for one in before} == {"generation=1"}
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        clean(pipeline.works(), context)
    assert records(before) == expected
    after = ranges(twin.location)
    assert len(records(after)) < len(expected)


def test_a_log_start_in_the_manifest_hides_what_lies_below_it(twin):
    store = twin.store(NAME)
    store.set_checkpoints(replace(store.checkpoints, log_start_offset=10))
    store.publish(run_id="test")
    assert min(row["offset"] for row in records(ranges(twin.directory(NAME)))) >= 10


def test_roots_are_found_by_what_lies_there(origin, mirror, twin):
    assert find_root(origin.path)[1] == [f"{name}-0" for name in NAMES]
    assert find_root(mirror)[1] == [f"{name}-0" for name in NAMES]
    root, names = find_root(twin.location)
    assert (root.has_manifests, names) == (True, [f"{name}-0" for name in NAMES])
    root, names = find_root(f"{twin.location}/{NAME}-0")
    assert (root.has_manifests, root.location, names) == (True, twin.location, [f"{NAME}-0"])
    root, names = find_root(f"{mirror}/{NAME}-0")
    assert (root.has_manifests, root.location, names) == (False, mirror, [f"{NAME}-0"])
    assert open_root(mirror).read("meta.properties", limit_bytes=1 << 20) is not None
    assert open_root(mirror).read("nothing", limit_bytes=1 << 20) is None
    assert open_root(twin.location, role=Role.MANAGED).read("a", limit_bytes=1) is None


def test_a_url_with_nothing_below_it_is_an_error():
    with pytest.raises(ConfigError, match="no objects below"):
        ranges("memory://nothing-here/at-all")


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["batches", "segments", "indexes", "epochs"])
def test_views_of_a_mirror_and_of_a_managed_root_have_what_the_directory_has(
    origin, mirror, twin, view
):
    def without_times(rows):
        return [row | {"modified": None} for row in rows]

    expected = without_times(rows_of_view(origin.path, view))
    for path in (mirror, twin.location, f"managed+{twin.location}"):
        assert without_times(rows_of_view(path, view)) == expected
    assert expected


def test_partitions_of_an_object_store_are_planned_several_at_once(mirror, monkeypatch):
    """An answer takes its time there: both are asked for before either has come."""
    expected = records(ranges(mirror))
    both = threading.Barrier(len(NAMES), timeout=60)
    for name in ("_list_log", "_find_bounds"):
        look = getattr(planning, name)

        def wait_and_look(*arguments, look=look):
            both.wait()
            return look(*arguments)

        monkeypatch.setattr(planning, name, wait_and_look)
    assert records(ranges(mirror)) == expected


def test_of_an_archive_without_snapshots_planning_a_committed_read_asks_for_no_log(
    origin, tmp_path, monkeypatch
):
    committed = {"kafka.isolation.level": "read_committed"}
    expected = records(ranges(origin.path, **committed))
    archive = f"memory://archive-{tmp_path.name}/logs"
    counting = CountingObjects(open_object_store(archive))
    for path in origin.path.rglob("*.log"):
        counting.put(path.relative_to(origin.path).as_posix(), path.read_bytes())
    monkeypatch.setattr(
        sys.modules["storage_core.store.open_store"], "open_object_store", lambda _url: counting
    )
    counting.requests.clear()
    planned = plan_ranges(parse_options({"path": archive, **committed}).request, now_ms=NOW_MS)
    assert counting.requests
    assert "data" not in {kind for _, kind in counting.requests}
    assert records(planned) == expected
    assert "data" in {kind for _, kind in counting.requests}
