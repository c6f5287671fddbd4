"""Whose root a partition is, by its location as rows name it."""

import pytest

from pylog_spark.tasks.root_access import root_of


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/var/lib/kafka/t-0", "/var/lib/kafka"),
        ("/disks/#1/kafka/t-0", "/disks/#1/kafka"),
        ("managed+/disks/#1/m/t-0#generation=12", "/disks/#1/m"),
        ("managed+s3://bucket/m/t-0#generation=12", "s3://bucket/m"),
        ("managed+s3://bucket/m/t-0", "s3://bucket/m"),
    ],
)
def test_the_root_of_a_partition_is_what_lies_above_it(location, root):
    assert root_of(location) == root
