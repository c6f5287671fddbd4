"""Records to Arrow, beside the decoders of the clients that Python has: records a second.

    python -m tests.bench.bench_arrow [--rounds 7] [--records 1500000]

Ours reads the files of a partition, checks them and gives key, value, headers, offset and timestamp
as Arrow batches. aiokafka's decoder, in Cython, and kafka-python's get bytes that are in memory,
check the CRC as their consumers do, and touch the same five fields of every record; kafka-python
gets only the first of them. All are one thread each, in turns, warm; what counts are processor
seconds, which a busy machine changes least. The clients come with the extra ``bench``.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from storage_core.kafka_log import open_logs
from tests.bench.figures import Figure
from tests.bench.generated_partition import Size, generated_partition
from tests.bench.shared import CACHE, processor_rates, run_with_options

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp")
OURS: Final = "ours"
AIOKAFKA: Final = "aiokafka"
KAFKA_PYTHON: Final = "kafka-python"
_FEW_RECORDS: Final = 60_000


def measure(*, records: int = Size().records, rounds: int = 8) -> Figure:
    """Decode a generated partition by all, in turns."""
    directory = generated_partition(CACHE, Size(records=records))
    warm = rates(directory, rounds=rounds)
    return Figure(
        work="records to Arrow, uncompressed, a core",
        unit="M records/s",
        ours=warm.pop(OURS),
        theirs=warm,
        targets={AIOKAFKA: 3, KAFKA_PYTHON: 30},
        least=12,
    )


def rates(directory: Path, *, rounds: int) -> dict[str, list[float]]:
    """Decode a partition by all, in turns; return millions of records a second, by name.

    Args:
        rounds: At least 2; the first one warms up and does not count.
    """
    data = max(directory.glob("*.log"), key=lambda path: path.stat().st_size).read_bytes()
    ways: dict[str, Callable[[], int]] = {
        OURS: lambda: _to_arrow(directory),
        AIOKAFKA: lambda: _decode("aiokafka", data, None),
        KAFKA_PYTHON: lambda: _decode("kafka", data, _FEW_RECORDS),
    }
    return processor_rates({name: (way() / 1e6, way) for name, way in ways.items()}, rounds=rounds)


def _to_arrow(directory: Path) -> int:
    return sum(batch.num_rows for batch in open_logs(directory).read(columns=COLUMNS))


def _decode(package: str, data: bytes, most: int | None) -> int:
    # Both clients have a module of this name, with a class of this name, alike to use.
    reader: Any = import_module(f"{package}.record.memory_records").MemoryRecords(data)
    count = 0
    for batch in iter(reader.next_batch, None):
        if not batch.validate_crc():
            raise AssertionError("a CRC is wrong")
        for record in batch:
            _ = record.key, record.value, record.headers, record.offset, record.timestamp
            count += 1
        if most is not None and count >= most:
            break
    return count


if __name__ == "__main__":
    run_with_options(measure)
