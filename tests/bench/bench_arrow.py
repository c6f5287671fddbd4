"""Records to Arrow, beside the decoders of the clients that Python has: records a second.

    python -m tests.bench.bench_arrow [--rounds 7] [--records 1500000]

Ours reads the files of a partition, checks them and gives key, value, headers, offset and timestamp
as Arrow batches. aiokafka's decoder, in Cython, and kafka-python's get bytes that are in memory,
check the CRC as their consumers do, and touch the same five fields of every record; kafka-python
gets only the first of them. All are one thread each, in turns, warm; what counts are processor
seconds, which a busy machine changes least. The clients come with the extra ``bench``.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from storage_core.kafka_log import open_logs
from tests.bench.bench_compaction import CACHE
from tests.bench.figures import Figure
from tests.bench.generated_partition import Size, generated_partition

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp")
AIOKAFKA: Final = "aiokafka"
KAFKA_PYTHON: Final = "kafka-python"
_FEW_RECORDS: Final = 60_000


def measure(*, records: int, rounds: int) -> Figure:
    """Decode a generated partition by all, in turns; the first round only warms up.

    Args:
        rounds: At least 2.
    """
    directory = generated_partition(CACHE, Size(records=records))
    data = max(directory.glob("*.log"), key=lambda path: path.stat().st_size).read_bytes()
    ways: dict[str, Callable[[], int]] = {
        "ours": lambda: _to_arrow(directory),
        AIOKAFKA: lambda: _decode("aiokafka", data, None),
        KAFKA_PYTHON: lambda: _decode("kafka", data, _FEW_RECORDS),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before = time.process_time()
            count = way()
            rates[name].append(count / 1e6 / (time.process_time() - before))
    warm = {name: each[1:] for name, each in rates.items()}
    return Figure(
        work="records to Arrow, uncompressed, a core",
        unit="M records/s",
        ours=warm.pop("ours"),
        theirs=warm,
        targets={AIOKAFKA: 3, KAFKA_PYTHON: 30},
        least=12,
    )


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=Size().records)
    options = parser.parse_args(arguments)
    print(measure(records=options.records, rounds=options.rounds).line())  # noqa: T201 - the report


if __name__ == "__main__":
    main()
