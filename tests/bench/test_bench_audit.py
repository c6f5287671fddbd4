"""`make bench`: how fast replicas are compared, and that every difference is named."""

from pathlib import Path

import pytest

from tests.bench.bench_audit import (
    FLIPPED,
    MD5,
    MISSING,
    OTHER_EPOCH,
    RECORDS,
    VERIFY,
    beside_verify,
    compare,
    write_replicas,
)
from tests.bench.figures import keep


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_three_differences_of_a_gigabyte_are_named_at_the_speed_of_checksums(tmp_path: Path):
    roots = write_replicas(tmp_path, 10**9)
    report = compare(roots)
    found = {
        (row["kind"], row["first_offset"], row["last_offset"]) for row in report.rows.to_pylist()
    }
    for kind, batch in (("bytes", FLIPPED), ("missing", MISSING), ("epoch", OTHER_EPOCH)):
        assert (kind, batch * RECORDS, batch * RECORDS + RECORDS - 1) in found
    read, crossed = report.total("read_bytes"), report.total("crossed_bytes")
    assert 0 < 1000 * crossed <= read
    print(f"\n{read:,} bytes read, {crossed:,} bytes crossed")  # noqa: T201 - what bench is for
    figure = beside_verify(roots[0] / "t-0", rounds=8)
    print(figure.line())  # noqa: T201 - likewise
    keep("audit", [figure])
    assert figure.ratio(MD5) > 3
    assert figure.ratio(VERIFY) > 0.7
