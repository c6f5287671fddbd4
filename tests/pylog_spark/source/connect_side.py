"""The format over Spark Connect: what a program with such a session sees and does.

``tests/pylog_spark/operations/connect_side.py`` runs it, for a process has sessions of one kind;
``make sparks`` runs all tests of the format so.
"""

from pathlib import Path
from typing import Any

from pylog_spark.source import create_views
from tests.kit.golden_data import Golden
from tests.pylog_spark.source.stream_program import copy_stream

TOPIC = {"subscribe": "events"}
WITH_LOG = TOPIC | {"includeLogColumns": "true", "includeHeaders": "true"}
CHOSEN = ("partition", "offset", "timestampType", "_log.file", "_log.position", "size(headers)")
# One of ranges, one of files, one of the root.
SOME_VIEWS = ("batches", "segments", "groups")


def rows_of(frame: Any) -> list[list[Any]]:
    """Return some of the columns, and the size of the records, in the order of offsets."""
    chosen = frame.selectExpr(*CHOSEN, "hash(key, value, topic)")
    return sorted(list(row) for row in chosen.collect())


def read_and_write(spark: Any, folder: Path) -> dict[str, Any]:
    """Read a golden directory in each way, stream it, write it; the copies are in the folder."""
    root = Golden("broker-dir").unpack(folder)
    create_views(spark, str(root), pattern="events")
    reader = spark.read.format("kafka-log")
    views = {view: reader.option("view", view).load(str(root)).count() for view in SOME_VIEWS}
    events = spark.read.format("kafka-log").options(**WITH_LOG).load(str(root))
    plain = spark.read.format("kafka-log").options(**TOPIC).load(str(root))
    plain.write.format("kafka-log").mode("append").save(str(folder / "written"))
    stream = TOPIC | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
    copy_stream(spark, root, folder, **stream).awaitTermination()
    function = spark.sql(f"FROM kafka_log('{root}', topic => 'events')")
    return {
        "root": str(root),
        "rows": rows_of(events),
        "views": views,
        "streamed": spark.read.parquet(str(folder / "rows")).distinct().count(),
        "triggers": len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))),
        "counted": function.count(),
        "viewed": spark.sql("SELECT key FROM events").count(),
    }
