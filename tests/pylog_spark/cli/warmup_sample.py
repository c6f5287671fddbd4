"""The log that ``pylog warmup`` carries inside it, built from plain values."""

from pathlib import Path

from storage_core.formats.batch_v2 import Codec
from storage_core.formats.control import ControlType
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import AbortedTxnSpec, SegmentSpec, write_partition
from tests.kit.legacy import LegacyMessage, LegacySet


def write_sample(directory: Path) -> Path:
    """Write a partition with something of everything that compaction looks at."""
    message = LegacyMessage(offset=0, key=b"a", value=b"0", magic=0)
    messages = LegacySet(
        messages=(LegacyMessage(offset=1, key=b"f"), LegacyMessage(offset=2, key=b"b")),
        codec=Codec.SNAPPY,
    )
    plain = BatchSpec(
        base_offset=3,
        records=(
            RecordSpec(key=b"a", value=b"1", headers=(("h", b"x"), ("n", None))),
            RecordSpec(key=b"b", value=b"2"),
            RecordSpec(key=None, value=b"3"),
        ),
    )
    aborted = _of_producer(6, b"c", base_sequence=0)
    abort = end_txn_marker(
        base_offset=8, producer_id=1, producer_epoch=0, control_type=ControlType.ABORT
    )
    committed = _of_producer(9, b"d", base_sequence=2)
    commit = end_txn_marker(base_offset=11, producer_id=1, producer_epoch=0)
    tombstones = BatchSpec(
        records=(RecordSpec(key=b"a", value=None), RecordSpec(key=b"e", value=b"4")),
        base_offset=12,
    )
    last = BatchSpec(records=(RecordSpec(key=b"b", value=b"5"),), base_offset=14)
    return write_partition(
        directory,
        [
            SegmentSpec(
                base_offset=0,
                batches=[message, messages, plain, aborted, abort],
                aborted=[
                    AbortedTxnSpec(
                        producer_id=1, first_offset=6, last_offset=8, last_stable_offset=9
                    )
                ],
            ),
            SegmentSpec(base_offset=9, batches=[committed, commit, tombstones]),
            SegmentSpec(base_offset=14, batches=[last]),
        ],
        index_interval_bytes=1,
    )


def _of_producer(base_offset: int, key: bytes, *, base_sequence: int) -> BatchSpec:
    return BatchSpec(
        records=(RecordSpec(key=key, value=b"6"), RecordSpec(key=key, value=b"7")),
        base_offset=base_offset,
        producer_id=1,
        producer_epoch=0,
        base_sequence=base_sequence,
        is_transactional=True,
    )
