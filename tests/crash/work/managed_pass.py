"""A round or a deletion pass of a run over a managed root: the old log, or the new one.

What the manifest names is all that anybody sees of a partition, so a crash leaves it as it was or
as it is to be; then another run finishes.
"""

from functools import partial
from itertools import count
from pathlib import Path

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.store import ObjectStore
from tests.crash.cells import Cell, WorkOnObjects
from tests.crash.interruptions import KILLS, Interruption
from tests.crash.work.retention import CASES
from tests.kit.compare import read_tree
from tests.kit.faulty_store import SimulatedCrash
from tests.kit.golden_data import Golden, Side
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, through, work_once

COMPACTED = ["clean-group-all-s211", "clean-hw-none-s161", "clean-epochs-mixed-s151"]
RETAINED = {
    "retain-size-s501": FIRST_ROUNDS_MS,
    "retain-size-zero-s501": FIRST_ROUNDS_MS,
    "retain-logstart-mid-s501": FIRST_ROUNDS_MS,
} | {
    golden.name: golden.case["clock_ms"]
    for golden in CASES
    if "compact" not in golden.case["config"]["cleanup.policy"]
}


class ManagedPass(WorkOnObjects):
    """What is due, observed, planned and committed in this process."""

    def __init__(self, name: str, now_ms: int, folder: Path, way: Interruption) -> None:
        self._name, self._now_ms, self._way = name, now_ms, way
        self._origin = broker_directory(folder / "log", [name])
        self._place, self._numbers = folder.name, count()
        self.reset()
        before = self._state()
        self.run()
        self._before, self._after = before, self._state()
        assert self._after != self._before
        golden = Golden(name)
        if golden.case["operation"] == "retain" and now_ms == golden.case["clock_ms"]:
            assert self._after[0] == read_tree(golden.unpack(folder / "kafka", Side.AFTER))
            start = self._after[1].log_start_offset
            assert start == golden.case["expected"]["log_start"]

    def reset(self) -> None:
        url = f"memory://crash/{self._place}/{next(self._numbers)}"
        self._twin = managed_twin(self._origin, url)
        self.objects = self._twin.objects

    def do(self, objects: ObjectStore) -> None:
        pipeline = ManagedPipeline(self._twin, self._now_ms, run_id="stopped")
        crash = None
        with pipeline.held() as context, through(objects):
            try:
                assert work_once(pipeline, context) == [None]
            except SimulatedCrash as its_end:  # the lease goes back all the same
                crash = its_end
        if crash is not None:
            raise crash

    def check(self, where: str) -> None:
        is_done = self.was_committed(self._way)
        assert self._state() == (self._after if is_done else self._before), where
        rerun = ManagedPipeline(self._twin, self._now_ms, run_id="rerun")
        with rerun.held() as context:
            assert work_once(rerun, context) == ([] if is_done else [None]), where
        assert self._state() == self._after, where

    def _state(self) -> tuple[dict[str, bytes], PartitionCheckpoints]:
        return self._twin.tree(self._name), self._twin.store(self._name).checkpoints


CELLS = [
    Cell(
        operation=operation,
        store="managed root",
        case=name,
        make=partial(ManagedPass, name, now_ms),
        ways=KILLS,
    )
    for operation, cases in (
        ("round", dict.fromkeys(COMPACTED, FIRST_ROUNDS_MS)),
        ("deletion", RETAINED),
    )
    for name, now_ms in cases.items()
]
