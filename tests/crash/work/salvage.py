"""A recovery that salvages what it cuts: what is cut was salvaged before."""

import shutil
from functools import partial
from pathlib import Path

from storage_core.commit import commit
from storage_core.maintenance.recovery.salvage import salvage_cuts
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOnDirectory
from tests.crash.interruptions import ALL, POWER, Interruption
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import plan_golden, settings_of

NAMES = ("recover-torn061-none-s400", "recover-earlier-above-payload-none-s400")


class Salvage(WorkOnDirectory):
    """Of every byte that the log has lost the salvage has a copy."""

    def __init__(self, name: str, folder: Path, _way: Interruption) -> None:
        self._golden = Golden(name)
        self._before = self._golden.unpack(folder / "before")
        self.disk = folder / "disk"
        self.directory = self.disk / "log" / self._before.name
        self._salvage = self.disk / "aside" / "run" / self._before.name
        self._cuts = plan_golden(self._golden, LocalStore(self._before)).repairs.cuts
        assert sum(cut.size_bytes for cut in self._cuts) > 0

    def reset(self) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self._before, self.directory)

    def do(self, store: LogStore) -> None:
        log = plan_golden(self._golden, store)
        config = settings_of(self._golden)["config"]
        salvage_cuts(
            store,
            log.repairs.cuts,
            self._salvage,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
        )
        commit(log.plan, store)

    def check(self, where: str) -> None:
        for cut in self._cuts:
            content = (self._before / cut.file).read_bytes()
            path = self.directory / cut.file
            if not path.exists() or path.read_bytes() != content:
                raw = self._salvage / f"cut-{cut.base_offset:020d}-{cut.position}.raw"
                lost = content[cut.position : cut.position + cut.size_bytes]
                assert raw.read_bytes() == lost, where


CELLS = [
    Cell(
        operation="recovery that salvages",
        case=name,
        make=partial(Salvage, name),
        ways=POWER,
        power_stride=1 if ALL else 7,
    )
    for name in NAMES
]
