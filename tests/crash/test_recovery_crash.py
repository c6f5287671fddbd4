"""A recovery stopped at every single change that it makes, and made again.

The broker's log directory is unclean until a recovery has ended, so the second one begins from the
same checkpoints. Where the marker was there (a load), the job removed it first; a load that finds
it again must come to the same end too, for the signs that a segment is still to be recovered go
last. ``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden directory.
"""

import os
import shutil

import pytest

from storage_core.plan.executor import commit
from storage_core.plan.plan import Plan
from storage_core.store.local import LocalStore
from storage_core.testing.compare import read_tree
from storage_core.testing.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.golden_data import goldens
from tests.golden_loading import plan_golden

ALL = os.environ.get("PYLOG_CRASH_ALL", "0") == "1"
pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

PATTERNS = (
    ("recover-*", "load-*", "leftover-*", "overflow-*-[lr]*")
    if ALL
    else (
        "recover-earlier-above-*-none*",
        "recover-torn061-none*",
        "recover-logstart-past*",
        "load-all-missing-*",
        "load-txnindex-reversed-*",
        "overflow-two-*",
        "leftover-swap-part-*",
    )
)
CASES = [
    golden
    for pattern in PATTERNS
    for golden in goldens(pattern)
    if "error" not in golden.case["expected"]
]


def without_snapshots(tree):
    """A load that finds no snapshot takes the producers to be gone, one that finds any replays."""
    return {name: data for name, data in tree.items() if not name.endswith(".snapshot")}


@pytest.mark.item("REC-06", "REC-25")
@pytest.mark.parametrize("golden", CASES, ids=lambda golden: golden.name)
def test_a_recovery_that_is_stopped_anywhere_and_made_again_ends_the_same(golden, tmp_path):
    before = golden.unpack(tmp_path / "before")

    def recover(store):
        log = plan_golden(golden, store)
        commit(Plan(location=store.location, operations=log.operations), store)

    def copy(name):
        directory = tmp_path / name / before.name
        shutil.copytree(before, directory)
        return directory

    whole = copy("whole")
    counting = FaultyStore(LocalStore(whole))
    recover(counting)
    expected = read_tree(whole)
    for number in range(len(counting.changes)):
        for moment in Moment:
            directory = copy(f"{number}-{moment.name}")
            with pytest.raises(SimulatedCrash):
                recover(FaultyStore(LocalStore(directory), stop_at=number, moment=moment))
            recover(LocalStore(directory))
            found = {
                name: data for name, data in read_tree(directory).items() if ".tmp" not in name
            }
            if golden.case["operation"] == "load":
                found, wanted = without_snapshots(found), without_snapshots(expected)
            else:
                wanted = expected
            assert found == wanted, f"{moment.value} change {number}: {counting.changes[number]}"
            shutil.rmtree(directory.parent)
