"""Up to where a log that grows can be read now."""

import shutil

import pytest

from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition
from storage_core.reading.planning import find_offsets
from storage_core.reading.request import Bound, ReadRequest, TopicChoice
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition

ORDERS = TopicPartition("orders", 0)


def test_a_segment_whose_name_kafka_would_not_write_is_an_error_of_its_file(tmp_path):
    batch = BatchSpec(base_offset=0, records=(RecordSpec(key=b"k", value=b"a"),))
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=[batch])])
    request = ReadRequest(
        paths=(str(tmp_path),), choice=TopicChoice(), starting=Bound(), ending=Bound(), columns=()
    )
    assert find_offsets(request, {}, now_ms=SOME_TIME_MS)[ORDERS].end == 1
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    shutil.copy(log, log.with_name("7.log"))
    with pytest.raises(StorageError, match=r"00000000000000000007\.log"):
        find_offsets(request, {}, now_ms=SOME_TIME_MS)
