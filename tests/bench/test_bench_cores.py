"""What a second processor is worth to one partition, in ``make bench``."""

import pytest

from tests.bench.bench_cores import ONE_GIB, TWO_GB, measure, measure_reading
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_one_partition_takes_less_time_with_two_processors():
    segment = measure(ONE_GIB, rounds=5)
    partition = measure(TWO_GB, rounds=5, has_kafka=True)
    read = measure_reading(ONE_GIB, rounds=21)
    lines = [line for cores in (segment, partition, *read.values()) for line in cores.lines()]
    print("", *lines, sep="\n")  # noqa: T201 - the report is what bench is for
    keep(
        "cores",
        [
            segment.beside_one_thread("compaction of one segment of 1 GiB, all processors"),
            partition.beside_kafka("compaction of 2 GB in one partition, all processors"),
            *(
                cores.beside_one_thread(f"{name} of one segment of 1 GiB, all processors")
                for name, cores in read.items()
            ),
        ],
    )
    for cores in (segment, *read.values()):
        one, several = ([turn.wall_secs for turn in some] for some in cores.turns.values())
        assert min(several) < min(one)
