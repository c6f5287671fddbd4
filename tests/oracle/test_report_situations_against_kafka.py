"""A real broker on situations of public reports: what the doctor's word is compared with."""

import shutil
import time
from pathlib import Path

import pytest

from storage_core.log.batch_search import ListedSegment, find_end_offset
from storage_core.store import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.coordinator_records import STRANGE_RECORDS, StrangeRecord
from tests.kit.report_situations import NOW_MS, unpack
from tests.oracle.broker import UNTOUCHED, Broker
from tests.oracle.started_broker import Starter

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600, method="thread")]


@pytest.mark.thorough
def test_the_empty_file_that_is_named_keeps_the_offsets_in_kafka(tmp_path: Path):
    [root] = unpack("drained_nofile", tmp_path / "lost")
    kept = Path(shutil.copytree(root, tmp_path / "kept" / "d1"))
    (kept / "drained-0" / "00000000000000000300.log").touch()
    with Starter() as starter:
        anew, goes_on = starter.start([root]), starter.start([kept])
    assert (anew.is_up, goes_on.is_up) == (True, True), (anew.error, goes_on.error)
    assert anew.logs is not None
    assert goes_on.logs is not None
    ends = [
        (log.log_start_offset, log.log_end_offset)
        for log in (anew.logs["drained-0"], goes_on.logs["drained-0"])
    ]
    assert ends == [(0, 0), (300, 300)]


class TwoDisks(Broker):
    """A broker over the log directories of a situation."""

    def own_settings(self, controller_port: int) -> dict[str, str]:
        disks = f"{self.log_directory},{self.log_directory.with_name('d2')}"
        return {**super().own_settings(controller_port), "log.dirs": disks}


def append(directory: Path, record: StrangeRecord) -> None:
    """Write a record behind the end of a log."""
    [log] = sorted(directory.glob("*.log"))
    end = find_end_offset(
        LocalStore(directory),
        ListedSegment(
            base_offset=0,
            size_bytes=log.stat().st_size,
            has_offset_index=True,
            has_time_index=True,
        ),
    )
    written = RecordSpec(key=record.key, value=record.value, timestamp=NOW_MS)
    with log.open("ab") as file:
        file.write(encode_batch(BatchSpec(base_offset=end, records=(written,))))


@pytest.mark.thorough
@pytest.mark.usefixtures("kafka_jvm")
def test_a_brokers_coordinators_load_what_we_say_that_they_load(tmp_path: Path):
    """An unknown version is in a partition of groups already, the others are written here."""
    d1, d2 = unpack("offsets_version", tmp_path)
    strange = {record.name: record for record in STRANGE_RECORDS}
    append(d2 / "__consumer_offsets-1", strange["__consumer_offsets-type"])
    append(d1 / "__transaction_state-0", strange["__transaction_state-version"])
    append(d2 / "__transaction_state-1", strange["__transaction_state-short"])
    expected = (
        "Failed to load metadata from __consumer_offsets-0",
        "Finished loading of metadata from __consumer_offsets-1",
        "Unknown record type 99 while loading offsets and group metadata from __consumer_offsets-1",
        "while loading transaction state from __transaction_state-0. Ignoring it",
        # It goes on with what stood before the record.
        "Error loading transactions from transaction log __transaction_state-1",
        "Completed loading transaction metadata from __transaction_state-1",
    )
    with TwoDisks(d1, scratch=tmp_path, settings=UNTOUCHED) as broker:
        broker.start()
        deadline = time.monotonic() + 60
        missing = set(expected)
        while missing and time.monotonic() < deadline:
            time.sleep(0.5)
            text = "\n".join(broker.log_lines())
            missing = {line for line in expected if line not in text}
        broker.stop()
    assert not missing, text
