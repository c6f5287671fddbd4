"""A recovery that salvages what it cuts, and a loss of power."""

import shutil

import pytest

from storage_core.commit import Plan, commit
from storage_core.maintenance.recovery.salvage import salvage_cuts
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, POWER, power_losses
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import plan_golden, settings_of

POWER_STRIDE = 1 if ALL else 7
pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


@pytest.mark.item("FLT-02", "FLT-08")
@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.parametrize(
    "name", ["recover-torn061-none-s400", "recover-earlier-above-payload-none-s400"]
)
def test_what_is_cut_was_salvaged_before_and_survives_a_loss_of_power(name, way, tmp_path):
    golden = Golden(name)
    before = golden.unpack(tmp_path / "before")
    disk = tmp_path / "disk"
    directory, salvage = disk / "log" / before.name, disk / "aside" / "run" / before.name
    config = settings_of(golden)["config"]

    def reset():
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(before, directory)

    def work():
        store = LocalStore(directory)
        log = plan_golden(golden, store)
        salvage_cuts(
            store,
            log.repairs.cuts,
            salvage,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )
        commit(Plan(location=store.location, operations=log.operations), store)

    cuts = plan_golden(golden, LocalStore(before)).repairs.cuts
    assert sum(cut.size_bytes for cut in cuts) > 0
    for where in power_losses(work, disk, way.way, reset=reset, stride=POWER_STRIDE):
        for cut in cuts:
            content = (before / cut.file).read_bytes()
            path = directory / cut.file
            if not path.exists() or path.read_bytes() != content:
                raw = salvage / f"cut-{cut.base_offset:020d}-{cut.position}.raw"
                lost = content[cut.position : cut.position + cut.size_bytes]
                assert raw.read_bytes() == lost, where
