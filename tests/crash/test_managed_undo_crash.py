"""An undo and a purge of a managed root, killed at every change of the store.

What a reader sees of a partition is what the run left or what was before it, never a mix; a purge
changes nothing that anybody sees. The same command, given again, ends as one that was not killed.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.operations import managed_purge, managed_undo
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import undo
from storage_core.clock import SystemClock
from storage_core.filenames import LEASE_FILE
from storage_core.store import open_object_store
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash
from tests.kit.wrapped_objects import TORN_KEY, FaultyObjects
from tests.pylog_spark.broker_roots import BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.operations.test_managed_undo import HOUR, RUN, SMALL, options, publish

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


@pytest.fixture
def origin(tmp_path: Path) -> BrokerDirectory:
    return broker_directory(tmp_path / "log", SMALL)


def after_a_run(origin: BrokerDirectory) -> ManagedTwin:
    """Return a root in which a run has made two generations of each partition."""
    twin = managed_twin(origin, f"memory://undone-{uuid.uuid4().hex}")
    for topic in SMALL:
        publish(twin, topic, RUN, b"first")
        publish(twin, topic, RUN, b"second")
    return twin


@contextmanager
def through(objects: FaultyObjects) -> Iterator[None]:
    """Let the partitions be reached through a wrapper; the lease is not what is killed here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (managed_purge, managed_undo):
            patch.setattr(module, "open_object_store", lambda _url: objects)
        yield


def undo_it(twin: ManagedTwin) -> Any:
    return undo(RUN, options(), roots=[twin.location])


def purge_it(twin: ManagedTwin) -> Any:
    late = SystemClock().now_ms() + 2 * HOUR
    return purge([twin.location], replace(options(now_ms=late), purge_after_ms=HOUR))


def seen(twin: ManagedTwin, topic: str) -> Any:
    return twin.tree(topic), twin.store(topic).checkpoints


def keys_of(twin: ManagedTwin) -> set[str]:
    """Return all that lies there, but for names that differ from run to run."""
    keys = {info.key for info in twin.objects.list("")} - {LEASE_FILE, TORN_KEY}
    return {key for key in keys if "/history/" not in key}


def changes_of(origin: BrokerDirectory, work: Callable[[ManagedTwin], Any]) -> tuple[int, Any]:
    twin = after_a_run(origin)
    counting = FaultyObjects(open_object_store(twin.location), stop_at=NEVER)
    with through(counting):
        assert work(twin).exit_code == 0
    return len(counting.changes), [seen(twin, topic) for topic in SMALL]


@pytest.mark.item("FLT-08", "DIR-15")
@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("work", [undo_it, purge_it])
def test_whatever_is_killed_readers_see_one_generation_and_the_next_one_ends_it(
    origin, work, moment
):
    count, expected = changes_of(origin, work)
    assert count >= len(SMALL)
    for number in range(count):
        twin = after_a_run(origin)
        before = [seen(twin, topic) for topic in SMALL]
        objects = open_object_store(twin.location)
        faulty = FaultyObjects(objects, stop_at=number, moment=moment)
        with through(faulty), pytest.raises(SimulatedCrash):
            work(twin)
        where = f"{moment.value} change {number}: {faulty.changes[-1]}"
        for topic, old, new in zip(SMALL, before, expected, strict=True):
            content = [tree for tree, _ in (old, new)]
            assert twin.tree(topic) in content, where
        # What is not purged can still be undone, what is not undone can still be purged.
        assert work(twin).exit_code == 0, where
        assert [seen(twin, topic)[0] for topic in SMALL] == [tree for tree, _ in expected], where
        assert [seen(twin, t)[1] for t in SMALL] == [points for _, points in expected], where


@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.value)
def test_a_killed_purge_leaves_as_much_as_is_needed_and_the_next_one_no_more(origin, moment):
    count, _ = changes_of(origin, purge_it)
    twin = after_a_run(origin)
    purge_it(twin)
    least = len(keys_of(twin))
    for number in range(count):
        twin = after_a_run(origin)
        faulty = FaultyObjects(open_object_store(twin.location), stop_at=number, moment=moment)
        with through(faulty), pytest.raises(SimulatedCrash):
            purge_it(twin)
        purge_it(twin)
        assert len(keys_of(twin)) == least, f"{moment.value} change {number}"
