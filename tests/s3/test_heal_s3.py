"""A broker's disk, healed from a mirror in a bucket."""

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.apply import ApplyOptions, apply_plan
from storage_core.store.s3_objects import S3ObjectStore
from tests.cluster.operations.test_heal import Lab, states


@pytest.mark.thorough
def test_a_mirror_in_a_bucket_is_a_donor_and_only_what_is_damaged_is_read_of_it(
    server, bucket, tmp_path
):
    lab = Lab("clean", tmp_path)
    whole = lab.logs()
    mirror = S3ObjectStore(f"{bucket}/mirror")
    for path in lab.donors[0].rglob("*"):
        if path.is_file() and path.parent != lab.donors[0]:
            mirror.put(path.relative_to(lab.donors[0]).as_posix(), path.read_bytes())
    lab.damage("ledger-0")
    lab.damage("stock_levels-1", 0.2)
    server.reset()
    report = lab.look(donors=[f"{bucket}/mirror"])
    assert states(report) == ["FILLED"] * 2
    assert report.damage["donors"].to_pylist()[0] == [f"{bucket}/mirror/ledger-0"]
    run = apply_plan(Local.of_master(None), lab.plan, ApplyOptions())
    assert run.exit_code == 0
    assert lab.logs() == whole
    kinds = {method for method, _ in server.counts()}
    assert kinds <= {"GET", "HEAD", "LIST"}
