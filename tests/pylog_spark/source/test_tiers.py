"""``kafka-log`` on a tier (KIP-405), alone and with a broker's disk."""

import json

import pytest

from pylog_spark.source import register
from storage_core.kafka_log import open_logs
from tests.kit.tier_archives import unpack_tier

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_query_reads_tier_and_disk_as_one_log(spark, tmp_path):
    register(spark)
    case = unpack_tier("aiven_aes", tmp_path)
    disk = str(case.folder / "local" / "b1")
    reader = (
        spark.read.format("kafka-log")
        .option("subscribe", "ledger")
        .option("decryptionKey", str(case.key))
        .option("maxPartitionBytes", "64k")
    )
    alone = reader.load(str(case.archive))
    joined = reader.option("withLocal", json.dumps([disk])).load(str(case.archive))
    for frame, with_local in ((alone, []), (joined, [disk])):
        logs = open_logs(case.archive, with_local=with_local, decryption_key=case.key)
        expected = logs.read("ledger", columns=["partition", "offset", "value"]).to_table()
        rows = frame.select("partition", "offset", "value").collect()
        assert sorted((row.partition, row.offset, bytes(row.value or b"")) for row in rows) == [
            (row["partition"], row["offset"], row["value"] or b"") for row in expected.to_pylist()
        ]
    assert joined.count() > alone.count()
