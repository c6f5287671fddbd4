"""Records of a tier on a local disk, beside those of the same log in a broker's directory.

    python -m tests.bench.bench_tier [--rounds 5] [--records 3000000]

The log is written by our own append path: texts of 101 bytes, in batches of 16 KB, uncompressed.
It lies there three times: as a partition's directory, as LocalTieredStorage has it, and as Aiven's
plugin has it, in chunks of 4 MiB that are Zstandard frames. All ways give Arrow batches with five
columns, in one thread, in turns, warm; what counts are processor seconds. Decoding alone is what
nobody can save: each chunk decompressed, and the records of the directory.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zstandard

from storage_core.filenames import TopicPartition
from storage_core.kafka_log import open_logs
from storage_core.store.tier_manifest import parse_manifest
from tests.bench.bench_arrow import COLUMNS
from tests.bench.figures import Figure
from tests.bench.generated_columns import TEXT_BYTES, Topic, generated_root
from tests.bench.shared import CACHE, processor_rates, run_with_options
from tests.kit.tier_writer import closed_segments, new_id, write_aiven, write_local

RECORDS: Final = 3_000_000
DISK: Final = "the same log on a disk"
DECODING: Final = "decoding alone"
_PLAIN, _CHUNKS = "plain", "chunks"
_CHUNK_BYTES: Final = 4 << 20
_TOPIC: Final = "tiered"


def measure(*, records: int = RECORDS, rounds: int = 6) -> list[Figure]:
    """Read a log from each place, in turns."""
    topic = Topic(
        name=_TOPIC,
        partitions=1,
        records=records,
        keys=records,
        value_bytes=TEXT_BYTES,
        segment_bytes=1 << 28,
        compression="uncompressed",
        has_texts=True,
    )
    disk = generated_root(CACHE, [topic])
    plain, chunks = CACHE / "tier-plain", CACHE / "tier-chunks"
    partition = TopicPartition(_TOPIC, 0)
    segments = closed_segments(disk / str(partition), partition, new_id(), log_end=records)
    for tier in (plain, chunks):
        shutil.rmtree(tier, ignore_errors=True)
    write_local(plain, segments)
    write_aiven(chunks, segments, chunk_bytes=_CHUNK_BYTES, is_compressed=True)
    ways: dict[str, Callable[[], int]] = {
        DISK: lambda: _read(disk),
        _PLAIN: lambda: _read(plain),
        _CHUNKS: lambda: _read(chunks),
        DECODING: lambda: _decompress(chunks) + _read(disk),
    }
    rates = processor_rates({name: (way() / 1e6, way) for name, way in ways.items()}, rounds=rounds)
    return [
        Figure(
            work="records of an uncompressed tier, a core",
            unit="M records/s",
            ours=rates[_PLAIN],
            theirs={DISK: rates[DISK]},
            targets={DISK: 0.8},
        ),
        Figure(
            work="records of a tier in Zstandard chunks, a core",
            unit="M records/s",
            ours=rates[_CHUNKS],
            theirs={DECODING: rates[DECODING]},
            targets={DECODING: 0.77},
        ),
    ]


def _read(root: Path) -> int:
    return sum(batch.num_rows for batch in open_logs(root).read(_TOPIC, columns=COLUMNS))


def _decompress(tier: Path) -> int:
    """Decompress each chunk; no record of it counts."""
    for path in tier.rglob("*.rsm-manifest"):
        table = parse_manifest(path.read_bytes(), str(path)).chunks
        begin = 0
        with path.with_suffix(".log").open("rb") as log:
            for end in table.ends.tolist():
                frame = log.read(end - begin)
                zstandard.ZstdDecompressor().decompress(frame, max_output_size=table.chunk_bytes)
                begin = end
    return 0


if __name__ == "__main__":
    run_with_options(measure)
