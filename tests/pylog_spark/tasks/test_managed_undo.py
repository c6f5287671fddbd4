"""Tasks of an undo on a managed root: done twice they say the same, a zombie changes nothing."""

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pylog_spark.operations.undo_task import undo_partitions
from pylog_spark.outcomes import Status
from pylog_spark.rows import row_writer
from pylog_spark.tasks.message import DirectoryResult
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ChangedWhileReadError, ConditionFailedError, UnsafeStoreError
from storage_core.filenames import TopicPartition
from storage_core.roots import managed
from storage_core.roots.managed import HeldManagedRoot, ManagedAccess, ManagedUndo
from storage_core.roots.root import UndoWork
from storage_core.store import ManagedStore
from tests.kit.wrapped_objects import CountingObjects
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.operations.test_managed_undo import RUN, SMALL, publish

UNDO = "20260103T030405Z-0a1b2c3d"


@pytest.fixture(params=["local", "memory"])
def twin(request, tmp_path) -> ManagedTwin:
    origin = broker_directory(tmp_path / "log", SMALL)
    memory = f"memory://undo-{tmp_path.name}"
    made = managed_twin(origin, tmp_path / "managed" if request.param == "local" else memory)
    for topic in SMALL:
        publish(made, topic, RUN, b"first")
        publish(made, topic, RUN, b"second")
    return made


@dataclass(frozen=True, slots=True)
class ToldUndo:
    """What tasks are told of an undo."""

    twin: ManagedTwin
    work: UndoWork[Any]
    status: Status


@contextmanager
def held(twin: ManagedTwin, run_id: str = UNDO) -> Iterator[ToldUndo]:
    with HeldManagedRoot(twin.location, run_id=run_id) as root:
        # What tasks are told goes on when the root was given back.
        apply = pickle.loads(pickle.dumps(root.undo_of(RUN, None).apply))
        yield ToldUndo(twin, apply, Status.DONE)


def undone(undo: ToldUndo, topics: Sequence[str] = SMALL) -> list[dict[str, Any]]:
    """Return the rows of a task, but for the time it took."""
    asked = ManagedUndo(root=HeldManagedRoot(undo.twin.location, run_id=UNDO), run_id=RUN)
    [part] = asked.parts(TopicFilter(topics=tuple(topics)))
    results = undo_partitions(
        pickle.loads(pickle.dumps(part)), undo.work, undo.status, in_turns=False
    )
    return [row_writer(DirectoryResult)(replace(each, duration_ms=0)) for each in results]


def manifests(twin: ManagedTwin) -> dict[str, Any]:
    return {topic: twin.store(topic).manifest for topic in SMALL}


@pytest.mark.sampled(1)
@pytest.mark.item("FLT-14")
def test_a_second_attempt_answers_as_the_first_one_did(twin):
    with held(twin) as undo:
        first = undone(undo)
        after = manifests(twin)
        keys = sorted(info.key for info in twin.objects.list())
        assert undone(undo) == first
        assert manifests(twin) == after
        assert sorted(info.key for info in twin.objects.list()) == keys
    assert [row["status"] for row in first] == ["done"] * len(SMALL)
    assert all(row["segments_after"] == row["segments_before"] + 2 for row in first)
    # Of another undo, given later, that is not said.
    with held(twin, "20260104T030405Z-0a1b2c3d") as again:
        assert {row["reason"] for row in undone(again)} == {"ALREADY_UNDONE"}
        assert manifests(twin) == after


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
def test_an_attempt_that_died_in_the_middle_is_gone_on_with(twin):
    with held(twin) as undo:
        expected = [*undone(undo, SMALL[:1])]
        assert undone(undo) == [*expected, *undone(undo, SMALL[1:])]
    assert [manifest.generation for manifest in manifests(twin).values()] == [4] * len(SMALL)


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
def test_of_two_attempts_at_once_both_answer_what_one_of_them_did(twin, monkeypatch):
    faster: list[dict[str, Any]] = []
    commit = ManagedAccess.publish

    with held(twin) as undo:

        def overtaken(access: ManagedAccess, store: ManagedStore, result: dict[str, Any]) -> None:
            monkeypatch.setattr(ManagedAccess, "publish", commit)
            faster.extend(undone(undo, SMALL[:1]))
            commit(access, store, result)

        monkeypatch.setattr(ManagedAccess, "publish", overtaken)
        assert undone(undo, SMALL[:1]) == faster
    assert faster[0]["status"] == "done"
    assert twin.store(SMALL[0]).manifest.generation == 4


@pytest.mark.thorough
def test_whom_somebody_else_overtook_does_not_say_that_it_was_he(twin, monkeypatch):
    commit = ManagedAccess.publish

    def overtaken(access: ManagedAccess, store: ManagedStore, result: dict[str, Any]) -> None:
        twin.store(SMALL[0]).publish(run_id="without-a-lease", fencing_token=1, result={})
        commit(access, store, result)

    monkeypatch.setattr(ManagedAccess, "publish", overtaken)
    with held(twin) as undo:
        [row] = undone(undo, SMALL[:1])
    assert (row["status"], row["error_class"]) == ("failed", ConditionFailedError.__name__)
    assert twin.store(SMALL[0]).manifest.run_id == "without-a-lease"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "error",
    [
        UnsafeStoreError("memory://store", "a write went through that had to be refused"),
        ChangedWhileReadError("0.log", "version 1", "another one"),
    ],
    ids=["unsafe store", "changed"],
)
def test_what_the_store_refuses_is_a_failure_of_the_undo(twin, monkeypatch, error):
    def refuse(access: ManagedAccess, store: ManagedStore, result: dict[str, Any]) -> None:
        raise error

    monkeypatch.setattr(ManagedAccess, "publish", refuse)
    with held(twin) as undo:
        [row] = undone(undo, SMALL[:1])
    assert (row["status"], row["reason"]) == ("failed", None)
    assert row["error_class"] == type(error).__name__


@pytest.mark.thorough
@pytest.mark.item("FLT-10")
def test_a_zombie_whose_lease_another_run_has_undoes_nothing(twin):
    before = manifests(twin)
    with held(twin) as undo:
        pass
    with HeldManagedRoot(twin.location, run_id="living"):
        rows = undone(undo)
    assert {(row["status"], row["error_class"]) for row in rows} == {("failed", "LeaseLostError")}
    assert all("run living" in row["error"] for row in rows)
    assert manifests(twin) == before


@pytest.mark.thorough
@pytest.mark.item("FLT-10")
def test_a_lease_that_is_lost_before_the_commit_stops_that_and_what_was_done_is_said(
    twin, monkeypatch
):
    before = manifests(twin)
    commit = ManagedAccess.publish

    def losing(access: ManagedAccess, store: ManagedStore, result: dict[str, Any]) -> None:
        access.validate()
        twin.objects.delete(["lease.json"])
        commit(access, store, result)

    with held(twin) as undo:
        [done] = undone(undo, SMALL[:1])
        monkeypatch.setattr(ManagedAccess, "publish", losing)
        [lost] = undone(undo, SMALL[1:])
        monkeypatch.setattr(ManagedAccess, "publish", commit)
        assert undone(undo) == [done, lost | {"error": undone(undo, SMALL[1:])[0]["error"]}]
    assert (lost["status"], lost["error_class"]) == ("failed", "LeaseLostError")
    assert manifests(twin)[SMALL[1]] == before[SMALL[1]]
    assert manifests(twin)[SMALL[0]].generation == 4


@pytest.mark.thorough
def test_a_look_writes_nothing_and_says_what_would_be(twin):
    before = manifests(twin)
    root = HeldManagedRoot(twin.location, run_id=UNDO)
    looked = undone(ToldUndo(twin, root.undo_of(RUN, None).check, Status.PLANNED))
    assert manifests(twin) == before
    with held(twin) as undo:
        done = undone(undo)
    assert [row | {"status": "planned", "steps": None} for row in done] == looked
    step = {"operation": "RestoreGeneration", "name": "1", "reason": f"as it was before run {RUN}"}
    assert [json.loads(row["steps"]) for row in done] == [[step]] * len(SMALL)


@pytest.mark.thorough
def test_what_an_undo_asks_of_the_store(twin, monkeypatch):
    untouched = TopicPartition("untouched", 0)
    store = ManagedStore(twin.objects, untouched, is_new=True)
    store.create_empty("00000000000000000000.log")
    store.publish(run_id="ingest")
    counting = CountingObjects(twin.objects)
    with held(twin) as undo, monkeypatch.context() as patch:
        patch.setattr(managed, "open_object_store", lambda _url: counting)
        undone(undo, [SMALL[0], untouched.topic])
    data = counting.count("head")
    assert 0 < data <= len(twin.store(SMALL[0]).list_files())
    assert {name: number for name, number in counting.requests.items() if name[0] != "head"} == {
        ("list", "other"): 1,  # by the driver
        ("get", "lease"): 1,  # before the commit
        ("get", "manifest"): 2,
        ("get", "history"): 2,
        ("put_if_absent", "history"): 1,
        ("put_if_match", "manifest"): 1,
    }
