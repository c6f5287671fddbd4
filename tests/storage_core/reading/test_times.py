"""Reads of a range of time: what the headers of batches leave out, and nothing else."""

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from storage_core.kafka_log import Logs, open_logs
from storage_core.reading.ranges import to_time
from storage_core.records import sifted_scan
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.file_damage import flip
from tests.kit.legacy import AnyBatch, LegacyMessage, LegacySet
from tests.storage_core.test_kafka_log import SOME_TIME

duckdb = pytest.importorskip("duckdb")

COUNT = 200
APPENDED = TimestampType.LOG_APPEND_TIME


@pytest.fixture
def fine_grained(monkeypatch):
    """Let a batch of any size be left out, and few be read without a look."""
    for name, number in {"_LEAST_BYTES": 1, "_PAGE_BYTES": 1, "_STRETCH_BYTES": 500}.items():
        monkeypatch.setattr(sifted_scan, name, number)
    monkeypatch.setattr(sifted_scan, "_ROWS_AT_A_TIME", 7)


def batches_of_any_kind(seed: int) -> list[AnyBatch]:
    """Return old entries, then batches with times that rise, and now and then do not."""
    chance, batches, offset = random.Random(seed), [], 0

    def time() -> int:
        return SOME_TIME_MS + 1000 * offset + chance.choice([0, 0, 0, -60_000, 60_000])

    def records() -> tuple[RecordSpec, ...]:
        size = chance.choice([1, 1, 2, 5])
        return tuple(
            RecordSpec(value=bytes(chance.randrange(200)), timestamp=time()) for _ in range(size)
        )

    while offset < COUNT:
        old: LegacyMessage | LegacySet = LegacyMessage(
            offset=offset, timestamp=time(), magic=chance.choice([0, 1])
        )
        if chance.random() < 0.5:
            inner = tuple(LegacyMessage(offset=offset + n, timestamp=time()) for n in range(3))
            kind = chance.choice(list(TimestampType)[-2:])
            old = LegacySet(messages=inner, timestamp_type=kind, timestamp=time() + 120_000)
        new = BatchSpec(
            base_offset=offset,
            records=records(),
            codec=chance.choice([Codec.NONE, Codec.GZIP]),
            **(
                {"timestamp_type": APPENDED, "max_timestamp": time()}
                if chance.random() < 0.5
                else {}
            ),
        )
        if offset < COUNT / 4:
            batches.append(old)
        elif chance.random() < 0.2:
            mine = {"producer_id": 7, "producer_epoch": 0}
            new = BatchSpec(
                base_offset=offset,
                records=records(),
                is_transactional=True,
                base_sequence=0,
                **mine,
            )
            kind = chance.choice([ControlType.ABORT, ControlType.COMMIT])
            batches += [new, end_txn_marker(base_offset=new.next_offset, control_type=kind, **mine)]
        else:
            batches.append(new)
        offset = batches[-1].next_offset
    return batches


def rows_between(logs: Logs, times_ms: tuple[int, int], *, isolation: str, is_sifted: bool):
    records = logs.read(isolation=isolation)
    table = (records.sifted(times_ms) if is_sifted else records).to_table()
    edges = to_time(pa.array(times_ms).to_numpy(), is_null=pa.array([False] * 2).to_numpy(False))
    first, last = edges
    time = table["timestamp"]
    return table.num_rows, table.filter(
        pc.and_(pc.greater_equal(time, first), pc.less_equal(time, last))
    )


@pytest.mark.usefixtures("fine_grained")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_no_record_of_the_time_is_left_out(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(sifted_scan, "CAN_CALL", sifted_scan.CAN_CALL and seed % 4 != 0)
    batches = batches_of_any_kind(seed)
    half = len(batches) // 2
    segments = [
        SegmentSpec(base_offset=part[0].base_offset, batches=part)
        for part in (batches[:half], batches[half:])
    ]
    write_partition(tmp_path / "mixed-0", segments)
    logs, chance = open_logs(tmp_path), random.Random(seed)
    for isolation in ("read_uncommitted", "read_committed"):
        for _ in range(6):
            first = SOME_TIME_MS + 1000 * chance.randrange(COUNT)
            times_ms = (first, first + 1000 * chance.randrange(50))
            more, expected = rows_between(logs, times_ms, isolation=isolation, is_sifted=False)
            fewer, found = rows_between(logs, times_ms, isolation=isolation, is_sifted=True)
            assert found.equals(expected)
            assert fewer < more


def write_spread(root: Path, **fields: object) -> int:
    """Write a partition of batches of 20 kB each, with one or two records a second; return its
    size."""
    batches: list[BatchSpec] = []
    for number in range(400):
        times = [SOME_TIME_MS + 1000 * number + 7 * n for n in range(int(fields.get("records", 2)))]
        records = tuple(
            RecordSpec(value=bytes(20_000 // len(times)), timestamp=each) for each in times
        )
        batches.append(
            BatchSpec(
                base_offset=batches[-1].next_offset if batches else 0,
                records=records,
                timestamp_type=fields.get("kind", TimestampType.CREATE_TIME),
                max_timestamp=times[-1],
            )
        )
    write_partition(root / "spread-0", [SegmentSpec(base_offset=0, batches=batches)])
    return sum(path.stat().st_size for path in root.rglob("*.log"))


@pytest.mark.parametrize(
    ("fields", "expected", "least", "most"),
    [
        pytest.param({"kind": APPENDED}, 4, 0, 0.05, id="the time of the broker"),
        pytest.param({"records": 1}, 3, 0, 0.05, id="a record a batch"),
        pytest.param({}, 5, 0.45, 0.55, id="several records a batch"),
    ],
)
def test_batches_behind_the_time_are_left_out_where_their_headers_have_it(
    tmp_path, fields, expected, least, most
):
    size = write_spread(tmp_path, **fields)
    dataset = open_logs(tmp_path).dataset()
    first, last = (SOME_TIME + timedelta(seconds=number) for number in (200, 202))
    query = f"SELECT count(*) FROM spread WHERE timestamp BETWEEN '{first}' AND '{last}'"  # noqa: S608  # the test's own
    with duckdb.connect(config={"python_enable_replacements": False}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("spread", dataset)
        ((count,),) = connection.sql(query).fetchall()
    assert count == expected
    assert dataset.size_bytes == size
    # The search for the first record reads one window.
    assert least * size <= dataset.read_bytes <= most * size + (1 << 20)
    assert (dataset.doubtful_bytes > 0) == (not fields)
    assert dataset.doubtful_bytes <= dataset.read_bytes <= dataset.done_bytes
    assert 0.45 * size <= dataset.planned_bytes <= 0.55 * size
    assert dataset.planned_bytes <= dataset.done_bytes <= dataset.planned_bytes + (2 << 20)


def test_damage_counts_where_a_batch_is_read(tmp_path):
    write_spread(tmp_path, kind=APPENDED)
    log = tmp_path / "spread-0" / "00000000000000000000.log"
    flip(log, log.stat().st_size - 30)
    logs = open_logs(tmp_path)
    assert logs.read().sifted((SOME_TIME_MS, SOME_TIME_MS + 1000)).to_table().num_rows > 0
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        logs.read().sifted((SOME_TIME_MS + 399_000, SOME_TIME_MS + 400_000)).to_table()
