"""MirrorMaker's offset syncs: what its own class writes is read, and counts as it counts there."""

from pathlib import Path
from typing import Any

import jpype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.cluster.offset_map import (
    OFFSET_SYNC_KEY,
    OFFSET_SYNC_VALUE,
    read_offset_syncs,
)
from storage_core.filenames import TopicPartition
from storage_core.messages.fields import FieldReader
from tests.cluster.storage.test_differences import rest
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.oracle.jars import mirror_jar
from tests.oracle.jvm import java, java_file, kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


@pytest.fixture(scope="module")
def offset_sync(kafka_jvm) -> Any:
    """MirrorMaker's class; its jar is not on the class path of Kafka's broker."""
    urls = jpype.JArray(java("java.net.URL"))([java_file(mirror_jar()).toURI().toURL()])
    loader = java("java.net.URLClassLoader")(
        urls, java("org.apache.kafka.common.TopicPartition").class_.getClassLoader()
    )
    return loader.loadClass("org.apache.kafka.connect.mirror.OffsetSync")


def written(kind: Any, topic: str, partition: int, upstream: int, downstream: int) -> RecordSpec:
    """Return the record that MirrorMaker writes of a pair."""
    with kafka_failures():
        long = java("java.lang.Long")
        place = java("org.apache.kafka.common.TopicPartition")
        constructor = kind.getConstructor(place.class_, long.TYPE, long.TYPE)
        sync = constructor.newInstance(
            place(topic, partition), long.valueOf(upstream), long.valueOf(downstream)
        )
        parts = []
        for name in ("recordKey", "recordValue"):
            method = kind.getDeclaredMethod(name)
            method.setAccessible(True)
            parts.append(bytes(method.invoke(sync)))
    return RecordSpec(key=parts[0], value=parts[1])


NUMBERS = st.integers(0, 2**63 - 1)


@given(st.text("aZ9._-", min_size=1, max_size=249), st.integers(0, 2**31 - 1), NUMBERS, NUMBERS)
def test_a_record_is_read_as_it_was_written(
    offset_sync, topic: str, partition: int, upstream: int, downstream: int
):
    record = written(offset_sync, topic, partition, upstream, downstream)
    readers = FieldReader(record.key or b""), FieldReader(record.value or b"")
    assert OFFSET_SYNC_KEY.read(readers[0], 0) == {"topic": topic, "partition": partition}
    assert OFFSET_SYNC_VALUE.read(readers[1], 0) == {
        "upstream_offset": upstream,
        "offset": downstream,
    }
    for reader in readers:
        reader.require_end()


def test_where_mirrormaker_began_anew_older_pairs_do_not_count(offset_sync, tmp_path: Path):
    pairs = [(0, 0), (100, 110), (200, 230), (150, 240), (160, 250), (160, 260)]
    records = [written(offset_sync, "t", 0, *pair) for pair in pairs]
    records += [written(offset_sync, "a-b", 7, 5, 6), RecordSpec(key=records[0].key, value=None)]
    directory = write_partition(
        tmp_path / "mm2-offset-syncs.b.internal-0",
        [SegmentSpec(base_offset=0, batches=[BatchSpec(records=tuple(records))])],
    )
    found = read_offset_syncs(rest(directory, 1))
    assert {partition: syncs.tolist() for partition, syncs in found.items()} == {
        TopicPartition("t", 0): [[0, 0], [100, 110], [150, 240], [160, 260]],
        TopicPartition("a-b", 7): [[5, 6]],
    }
