"""``spark.read.format("kafka-log")`` in a Spark session."""

import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkAttributeError
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.udtf import AnalyzeResult

from pylog_spark.source import register
from pylog_spark.source.reader import KafkaLogReader
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_data import Golden
from tests.pylog_spark.session_doubles import RefusingConf, ServerlessSession

pytestmark = pytest.mark.spark

HAS_FUNCTION = hasattr(sf, "arrow_udtf")
needs_function = pytest.mark.skipif(not HAS_FUNCTION, reason="needs pyspark 4.1")

# Spark's own Kafka source has these columns, with headers if they are asked for.
KAFKA_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Golden("broker-dir").unpack(tmp_path_factory.mktemp("source"))


@pytest.fixture
def read(spark: Any, root: Path) -> Any:
    register(spark)

    def load(**options: str) -> Any:
        return spark.read.format("kafka-log").options(**options).load(str(root))

    return load


@pytest.mark.thorough
def test_the_columns_are_those_of_sparks_own_kafka_source(read):
    assert read().schema == StructType(KAFKA_COLUMNS)
    assert read(includeHeaders="true").schema == StructType([*KAFKA_COLUMNS, HEADERS])


def test_chosen_columns_are_the_only_ones(read):
    frame = read(subscribe="events", columns="offset,partition")
    assert frame.columns == ["offset", "partition"]
    counts = {
        row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()
    }
    assert counts == {0: 511, 1: 537}


@pytest.mark.thorough
def test_a_filter_narrows_its_own_action_only(read):
    frame = read(subscribe="events")
    everything = frame.count()
    assert frame.where(sf.col("offset") < 300).count() < everything
    assert frame.count() == everything
    both = frame.where(sf.col("partition") == 0).union(frame)
    assert both.count() == everything + frame.where(sf.col("partition") == 0).count()


def test_the_reader_offers_no_filter_push_down():
    own = [name for name, _ in inspect.getmembers(KafkaLogReader) if name in vars(KafkaLogReader)]
    assert "pushFilters" not in own


class _Narrowed(DataSourceReader):
    """Reads 0 to 9, or less where Spark hands it a filter."""

    def __init__(self) -> None:
        self._first = 0

    def pushFilters(self, filters: list[Any]) -> Any:  # noqa: N802  # Spark's
        for each in filters:
            if type(each).__name__ == "GreaterThanOrEqual":  # PySpark 4.0 has no such class
                self._first = each.value
            yield each  # Spark filters, too

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._first, 10)]

    def read(self, partition: InputPartition) -> Any:
        yield (partition.value,)


class _Numbers(DataSource):
    def schema(self) -> str:
        return "number int"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _Narrowed()

    @classmethod
    def name(cls) -> str:
        return "narrowed-numbers"


@pytest.mark.thorough
@pytest.mark.skipif(not version("pyspark").startswith("4.2."), reason="what 4.2 does")
def test_spark_still_keeps_what_a_filter_left_for_later_actions(spark):
    """Where this fails, Spark is mended, and ``kafka-log`` can take filters."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.dataSource.register(_Numbers)
    spark.conf.set(name, "true")
    try:
        frame = spark.read.format("narrowed-numbers").load()
        assert frame.count() == 10
        assert frame.where("number >= 7").count() == 3
        assert frame.count() == 3  # of 10
    finally:
        spark.conf.set(name, before)


def test_a_range_without_records_is_an_empty_frame(read):
    same = '{"events":{"0":300}}'
    frame = read(assign='{"events":[0]}', startingOffsets=same, endingOffsets=same)
    assert frame.count() == 0


def test_a_session_says_how_much_a_task_reads_when_the_format_is_registered(spark, read, root):
    name = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(name)
    spark.conf.set(name, "10KB")
    try:
        register(spark)
        frame = spark.read.format("kafka-log").option("subscribe", "events").load(str(root))
        assert frame.select(sf.spark_partition_id()).distinct().count() > 4
    finally:
        spark.conf.set(name, before)
        register(spark)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("as_url", ["{}", "file:{}", "file://{}"])
def test_several_paths_patterns_and_urls_of_files_are_read(spark, read, root, as_url: str):
    both = [as_url.format(root / f"events-{number}") for number in (0, 1)]
    pattern = as_url.format(root / "events-*")
    for path in (both, pattern, [pattern]):
        frame = spark.read.format("kafka-log").option("columns", "offset").load(path)
        assert frame.count() == 1048


def test_keys_and_columns_are_options(read):
    rows = read(subscribe="compacted", keys="key-30", columns="key,offset").collect()
    assert len(rows) > 1
    assert {bytes(row.key) for row in rows} == {b"key-30"}


def test_a_session_that_says_no_settings_reads_as_much_a_task_as_spark_would(spark, read):
    try:
        register(ServerlessSession(spark, RefusingConf({})))
        assert read(subscribe="events").count() == 1048
    finally:
        register(spark)


def test_registering_twice_changes_nothing(spark, read):
    register(spark)
    assert read(subscribe="events").count() == 1048


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subcribe": "events"}, "did you mean subscribe?"),
        ({"mine": "a", "yours": "b"}, "mine, yours: unknown"),
        ({"subscribe": "nothing"}, "no such topic"),
        ({"view": "bathces"}, "there are: records, batches"),
    ],
    ids=str,
)
def test_a_wrong_option_is_said_in_sparks_error(read, options, said: str):
    with pytest.raises(AnalysisException, match=said.replace("?", r"\?")):
        read(**options).count()


def test_a_frame_refuses_a_log_whose_middle_is_missing(spark, tmp_path):
    register(spark)
    directory = Golden("recover-middle-segment-missing-none-s400").unpack(tmp_path)
    read = spark.read.format("kafka-log")
    with pytest.raises(Exception, match="MissingSegmentError") as refused:
        read.load(str(directory)).count()
    assert "failOnDataLoss=false" in str(refused.value)
    assert read.option("failOnDataLoss", "false").load(str(directory)).count() > 0


@pytest.mark.thorough
def test_a_view_of_sql_has_the_options_and_looks_at_the_logs_when_it_is_created(spark, tmp_path):
    register(spark)
    root = tmp_path / "kafka"

    def write(count: int) -> None:
        batches = some_batches(count=count)
        write_partition(root / "t-0", [SegmentSpec(base_offset=0, batches=batches)])

    options = f"OPTIONS (path '{root}', subscribe 't', columns 'partition,offset')"
    for count in (3, 5):
        write(count)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW logs USING `kafka-log` {options}")
        assert spark.table("logs").columns == ["partition", "offset"]
        (row,) = spark.sql("SELECT count(*), max(offset) FROM logs").collect()
        assert tuple(row) == (count, count - 1)
    spark.read.format("kafka-log").load(str(root)).createOrReplaceTempView("logs")
    assert spark.sql("SELECT * FROM logs WHERE offset > 2").count() == 2
    spark.catalog.dropTempView("logs")


@pytest.fixture
def call(spark: Any, root: Path) -> Any:
    """Call the table function on the golden directory, with more arguments in SQL."""
    register(spark)
    return lambda arguments="": spark.sql(f"FROM kafka_log('{root}'{arguments})")


@pytest.mark.thorough
@needs_function
def test_the_table_function_has_the_rows_of_the_format_in_one_task(read, call):
    assert call().schema == read().schema
    pattern = {"subscribePattern": "[^_].*"}
    whole = read(**pattern, **{"kafka.isolation.level": "read_committed"})
    ours = call(", subscribePattern => '[^_].*', `kafka.isolation.level` => 'read_committed'")
    assert ours.exceptAll(whole).count() == whole.exceptAll(ours).count() == 0
    assert ours.count() == whole.count() > 1000
    some = read(subscribe="compacted", keys="key-30")
    assert call(", topic => 'compacted', keys => 'key-30'").exceptAll(some).count() == 0
    assert 0 < some.count() < read(subscribe="compacted").count()
    assert ours.select(sf.spark_partition_id()).distinct().count() == 1
    assert (
        call(", topic => 'events', startingTimestamp => 0, failOnDataLoss => false").count() == 1048
    )
    assert call(", topic => NULL").count() == read().count()
    assert len(call().limit(3).collect()) == 3


@pytest.mark.sampled(2)
@needs_function
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (", subcribe => 'events'", "did you mean subscribe"),
        (", topic => 'nothing'", "no such topic"),
        (", `view` => 'segments'", "CREATE TEMPORARY VIEW"),
        (", includeHeaders => true", "CREATE TEMPORARY VIEW"),
        (
            ", topic => 'a\\'b', includeHeaders => true, keys => 'x\\\\y'",
            r"VIEW `a'b` USING `kafka-log` OPTIONS .* `subscribe` 'a\\'b', .* `keys` 'x\\\\y'\)",
        ),
        (", topic => array('events')", "subscribe: expected a text"),
    ],
    ids=str,
)
def test_what_the_table_function_does_not_have_is_said(call, arguments: str, said: str):
    with pytest.raises(Exception, match=said):
        call(arguments).collect()


@pytest.mark.skipif(HAS_FUNCTION, reason="this PySpark has functions that speak Arrow")
def test_the_table_function_says_which_pyspark_it_needs(call):
    with pytest.raises(Exception, match=r"needs pyspark 4\.1; there is CREATE TEMPORARY VIEW"):
        call(", topic => 'events', `kafka.isolation.level` => 'read_committed'").collect()


def test_spark_still_gives_a_function_to_one_task_and_fixes_its_columns(spark):
    """If this fails Spark has mended it: the table function can have all columns, or spread."""

    class Told:
        @staticmethod
        def analyze() -> AnalyzeResult:
            return AnalyzeResult(StructType().add("told", StringType()))

        def eval(self) -> Any:
            yield pa.RecordBatch.from_pydict({"told": ["something"]})

    if HAS_FUNCTION:
        with pytest.raises(PySparkAttributeError, match="INVALID_ARROW_UDTF_WITH_ANALYZE"):
            sf.arrow_udtf(Told)
        register(spark)
        with pytest.raises(AnalysisException, match="LATERAL_JOIN_WITH_ARROW_UDTF_UNSUPPORTED"):
            spark.sql("SELECT * FROM VALUES ('/logs') AS t (path), LATERAL kafka_log(path)")


def test_create_table_is_refused_with_what_to_do(spark, tmp_path):
    register(spark)
    write_partition(tmp_path / "t-0", [plain_segment(0, 1)])
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE logs USING `kafka-log` OPTIONS (path '{tmp_path}')")


def test_spark_still_forgets_the_options_of_a_table_whose_source_is_in_python(spark):
    """If this fails Spark has mended it: CREATE TABLE need not be refused any more."""

    class Told(DataSource):
        @classmethod
        def name(cls) -> str:
            return "told"

        def schema(self) -> str:
            return "told STRING"

        def reader(self, schema: StructType) -> DataSourceReader:
            raise KeyError(self.options["path"])

    spark.dataSource.register(Told)
    spark.sql("CREATE TABLE told USING told OPTIONS (path 'it was told')")
    try:
        with pytest.raises(AnalysisException) as refused:
            spark.sql("SELECT * FROM told").collect()
        assert "it was told" not in str(refused.value)
    finally:
        spark.sql("DROP TABLE told")
