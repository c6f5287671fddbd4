"""What a session is asked, and what is made of its answers."""

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from pylog_spark.discovery import count_directories
from pylog_spark.engines.session_facts import (
    count_slots,
    has_delta,
    heap_bytes,
    is_connect,
    setting,
)
from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.ledger.spark_ledger import ledger_format
from pylog_spark.ledger.tables import LedgerFormat
from storage_core.catalog.roles import Role
from storage_core.roots.open_root import LogRoot
from tests.pylog_spark.session_doubles import RefusingConf, ServerlessSession, TellingConf


def classic(parallelism: int = 2, *, master: str = "spark://elsewhere:7077", **settings: str):
    """A session whose context is said to run so many tasks at once."""
    conf = {key.replace("_", "."): value for key, value in settings.items()}
    context = SimpleNamespace(defaultParallelism=parallelism, master=master)
    return SimpleNamespace(conf=TellingConf(conf), sparkContext=context)


def elastic(**more: str) -> dict[str, str]:
    return {"spark_dynamicAllocation_enabled": "true", **more}


def test_slots_are_those_of_the_executors_that_are_there():
    assert count_slots(classic(6)) == 6
    assert count_slots(classic(6, spark_sql_shuffle_partitions="200")) == 6
    assert count_slots(classic(6, spark_sql_shuffle_partitions="auto")) == 6


def test_slots_of_dynamic_allocation_are_those_that_may_come():
    most = elastic(spark_dynamicAllocation_maxExecutors="10", spark_executor_cores="4")
    assert count_slots(classic(2, **most)) == 40
    assert count_slots(classic(2, **most, spark_task_cpus="2")) == 20
    assert count_slots(classic(100, **most)) == 100


@pytest.mark.parametrize(
    ("tasks", "on_a_cluster", "in_this_machine"), [(0, 3, 8), (1, 3, 8), (2, 3, 4), (8, 3, 3)]
)
def test_a_task_uses_the_processors_that_spark_gives_it_and_here_the_idle_ones(
    tasks, on_a_cluster, in_this_machine
):
    three = {"spark_task_cpus": "3"}
    assert SparkEngine(classic(8, **three), tag="t").threads_of(tasks) == on_a_cluster
    here = classic(8, master="local[8]", **three)
    assert SparkEngine(here, tag="t").threads_of(tasks) == in_this_machine


@pytest.mark.parametrize("cpus", [{}, {"spark_task_cpus": "auto"}, {"spark_task_cpus": "0"}])
def test_a_task_has_one_processor_where_nothing_else_is_said(cpus):
    assert SparkEngine(classic(8, **cpus), tag="t").threads_of(1) == 1


ENDLESS = (str(2**31 - 1), "auto", "")


def test_dynamic_allocation_without_a_limit_is_no_cluster_without_one():
    for limit in ({}, *({"spark_dynamicAllocation_maxExecutors": most} for most in ENDLESS)):
        assert count_slots(classic(2, **elastic(**limit))) == 64


def test_a_session_that_refuses_to_be_asked_has_no_settings():
    session = ServerlessSession(None, RefusingConf({"spark.sql.shuffle.partitions": "auto"}))
    assert is_connect(session)
    assert setting(session, "spark.sql.shuffle.partitions") == "auto"
    assert setting(session, "spark.executor.cores") is None
    assert heap_bytes(session) == 1 << 30


def test_a_directory_of_a_hundred_partitions_is_counted_before_it_is_listed(tmp_path):
    for number in range(100):
        (tmp_path / f"t-{number}").mkdir()
    local = LogRoot(location=str(tmp_path), role=Role.BROKER, is_said=True)
    assert count_directories([local]) == 100
    bucket = LogRoot(location="s3://bucket/prefix", role=Role.MIRROR, is_said=True)
    assert count_directories([local, bucket]) is None


@pytest.mark.thorough
@pytest.mark.spark
def test_slots_of_a_connect_session_are_what_spark_cuts_a_range_for(spark):
    settings = RefusingConf({"spark.sql.shuffle.partitions": "auto"})
    session = ServerlessSession(spark, settings)
    assert count_slots(session) == count_slots(spark) == 2
    engine = SparkEngine(session, tag="test")
    assert (engine.can_broadcast, engine.slots) == (False, 2)


@pytest.mark.spark
def test_a_session_that_does_not_say_whether_it_has_delta_is_asked_to_read_it(spark):
    session = ServerlessSession(spark, RefusingConf({}))
    assert has_delta(session)
    assert ledger_format(session) is LedgerFormat.DELTA


class UnknownFormatError(AnalysisException):
    """What a server says that does not know a format."""

    def getCondition(self) -> str:  # noqa: N802  # Spark's name
        return "DATA_SOURCE_NOT_FOUND"


class NoFormat:
    """What reading such a format gives: an error, once its columns are asked for."""

    @property
    def schema(self):
        raise UnknownFormatError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.")


def test_a_session_that_knows_no_delta_has_none():
    reader = SimpleNamespace(format=lambda _: SimpleNamespace(load=lambda _: NoFormat()))
    assert not has_delta(ServerlessSession(SimpleNamespace(read=reader), RefusingConf({})))
