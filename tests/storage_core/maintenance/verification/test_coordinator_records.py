"""Records of coordinators that Kafka 4.4 does not read: which it ignores, which stop its load."""

import struct
from pathlib import Path

import pytest

from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.maintenance.verification.findings import (
    Code,
    DirectoryContext,
    Finding,
    Severity,
    VerifyOptions,
)
from storage_core.store import LocalStore
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.coordinator_records import STRANGE_RECORDS, StrangeRecord
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.one_partition import verify_partition

CODES = {Code.COORDINATOR_NOT_LOADED, Code.COORDINATOR_RECORD_IGNORED}


def findings(
    directory: Path, *records: tuple[bytes, bytes | None], start: int | None = None
) -> list[Finding]:
    specs = tuple(
        RecordSpec(key=key, value=value, timestamp=SOME_TIME_MS) for key, value in records
    )
    batch = BatchSpec(base_offset=0, records=specs)
    write_partition(directory, [SegmentSpec(base_offset=0, batches=[batch])])
    _, found = verify_partition(
        LocalStore(directory),
        DirectoryContext(role=Role.BROKER, is_clean=True),
        VerifyOptions(now_ms=SOME_TIME_MS),
        PartitionCheckpoints(log_start_offset=start),
    )
    return [each for each in found if each.code in CODES]


@pytest.mark.parametrize("record", STRANGE_RECORDS, ids=lambda one: one.name)
def test_a_record_that_kafka_does_not_read_is_found(tmp_path: Path, record: StrangeRecord):
    directory = tmp_path / f"{record.topic}-3"
    one = (record.key, record.value)
    [found] = findings(directory, one, one)
    assert found.code is (
        Code.COORDINATOR_NOT_LOADED if record.stops_load else Code.COORDINATOR_RECORD_IGNORED
    )
    assert (found.offset, found.file) == (0, "00000000000000000000.log")
    assert "; 2 such records" in found.message
    is_lost = record.stops_load or record.topic == "__transaction_state"
    assert (found.severity.rank >= Severity.WARN.rank) == is_lost


def test_records_below_the_log_start_and_of_other_topics_do_not_count(tmp_path: Path):
    strange = next(one for one in STRANGE_RECORDS if one.stops_load)
    good = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0), None
    written = ((strange.key, strange.value), good)
    assert findings(tmp_path / "a" / f"{strange.topic}-0", *written, start=1) == []
    assert findings(tmp_path / "b" / "orders-0", *written) == []
    assert len(findings(tmp_path / "c" / f"{strange.topic}-0", *written)) == 1
