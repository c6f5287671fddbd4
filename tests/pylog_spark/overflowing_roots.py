"""A log directory with a segment whose offsets lie further apart than it can say."""

from pathlib import Path

from storage_core.filenames import TopicPartition
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.directories import SegmentSpec, write_partition
from tests.pylog_spark.broker_roots import BrokerDirectory

FAR = 2**32


def batch(offset: int, key: bytes) -> BatchSpec:
    return BatchSpec(base_offset=offset, records=(RecordSpec(key=key, value=b"%d" % offset),))


def overflowing_root(path: Path) -> BrokerDirectory:
    """Return a directory with one partition, as a broker of old could compact it."""
    path.mkdir()
    root = BrokerDirectory(path)
    directory = write_partition(
        path / "t-0", [SegmentSpec(base_offset=0), SegmentSpec(base_offset=FAR + 9)]
    )
    spread = [batch(0, b"a"), batch(1, b"b"), batch(FAR, b"a"), batch(FAR + 7, b"c")]
    with (directory / f"{0:020}.log").open("wb") as log:
        log.write(b"".join(encode_batch(each) for each in spread))
    root.configs["t"] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    root.high_watermarks[TopicPartition("t", 0)] = FAR + 9
    root.write_files()
    return root
