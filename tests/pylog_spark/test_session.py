import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import javaproperties
import pytest
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from pylog_spark import session
from pylog_spark.session import (
    SparkNotInstalledError,
    build_session,
    session_conf,
    submit_arguments,
)
from pylog_spark.without_pandas import hide_pandas
from storage_core.errors import ConfigError, MissingSoftwareError

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


@pytest.fixture
def jars(monkeypatch):
    monkeypatch.setattr(session, "delta_jars", lambda _settings=None: JARS)


@pytest.mark.parametrize("master", ["foo", "local[", "spark:7077", "spark://", "local2"])
def test_a_master_that_spark_does_not_know_is_refused_before_spark_starts(master: str):
    with pytest.raises(ConfigError, match=f"^--master={re.escape(master)}: expected local"):
        build_session(master)


def test_the_callers_settings_win():
    conf = session_conf("local[2]", {"spark.ui.enabled": "true", "x": "y"}, delta=False)
    assert conf["spark.ui.enabled"] == "true"
    assert conf["x"] == "y"
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_the_callers_options_for_java_are_added_to_ours():
    conf = session_conf("local[2]", {"spark.driver.extraJavaOptions": "-Xss8m"}, delta=False)
    ours, said = conf["spark.driver.extraJavaOptions"].split(" ")
    assert ours.startswith("-Dlog4j2.configurationFile=file:///")
    assert said == "-Xss8m"


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_the_jvm_of_a_job_on_this_machine_starts_quickly(master):
    options = java_options(master, "", is_of_job=True)
    assert {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"} <= options
    assert not any("XX" in option for option in java_options(master, "", is_of_job=False))


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn"])
def test_the_jvm_of_a_job_on_a_cluster_is_as_ever(master):
    assert not any("XX" in option for option in java_options(master, "", is_of_job=True))


def test_the_callers_collector_is_the_only_one():
    options = java_options("local[2]", "-Xss8m -XX:+UseParallelGC", is_of_job=True)
    assert {option for option in options if "GC" in option} == {"-XX:+UseParallelGC"}


@pytest.mark.parametrize(("is_of_job", "said"), [(True, "1"), (False, None)])
def test_workers_of_a_job_start_no_threads_of_blas(*, is_of_job: bool, said: str | None):
    found = session_conf("spark://far:7077", {}, delta=False, is_of_job=is_of_job)
    assert found.get("spark.executorEnv.OPENBLAS_NUM_THREADS") == said


def test_a_job_on_this_machine_forks_its_workers_and_compiles_no_plans():
    found = session_conf("local[2]", {}, delta=False, is_of_job=True)
    assert find_spec(found["spark.python.daemon.module"]) is not None
    assert found["spark.sql.codegen.factoryMode"] == "NO_CODEGEN"
    daemon = {"spark.python.daemon.module": "pyspark.daemon"}
    assert session_conf("local[2]", daemon, delta=False, is_of_job=True).items() >= daemon.items()


@pytest.mark.parametrize(("master", "is_of_job"), [("local[2]", False), ("yarn", True)])
def test_another_session_keeps_the_workers_and_plans_of_spark(master: str, *, is_of_job: bool):
    found = session_conf(master, {}, delta=False, is_of_job=is_of_job)
    assert not [key for key in found if key.startswith(("spark.python.", "spark.sql.codegen."))]


def java_options(master: str, said: str, *, is_of_job: bool) -> set[str]:
    conf = {"spark.driver.extraJavaOptions": said} if said else {}
    found = session_conf(master, conf, delta=False, is_of_job=is_of_job)
    return set(found["spark.driver.extraJavaOptions"].split(" "))


@pytest.mark.usefixtures("jars")
@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"]
)
def test_on_this_host_delta_is_on_the_class_path_of_driver_and_executors(master):
    conf = session_conf(master, {"spark.executor.extraClassPath": "/mine.jar"}, delta=True)
    assert conf["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
    assert conf["spark.executor.extraClassPath"] == "/jars/a.jar:/jars/b.jar:/mine.jar"
    assert "DeltaSparkSessionExtension" in conf["spark.sql.extensions"]


@pytest.mark.usefixtures("jars")
def test_on_a_cluster_delta_is_sent_along():
    conf = session_conf("spark://elsewhere:7077", {"spark.jars": "/mine.jar"}, delta=True)
    assert conf["spark.jars"] == "/jars/a.jar,/jars/b.jar,/mine.jar"
    assert "spark.driver.extraClassPath" not in conf
    assert "spark.ui.enabled" not in conf


def test_delta_that_the_caller_brings_is_not_fetched(monkeypatch):
    monkeypatch.setattr(session, "delta_jars", lambda _settings=None: pytest.fail("fetched"))
    packages = {"spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0"}
    conf = session_conf("local[2]", packages, delta=True)
    assert "spark.driver.extraClassPath" not in conf
    assert "DeltaSparkSessionExtension" in conf["spark.sql.extensions"]


def test_without_delta_nothing_of_it_is_configured():
    assert not any("delta" in value for value in session_conf("local[2]", {}, delta=False).values())


def test_without_pyspark_the_error_names_the_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    with pytest.raises(SparkNotInstalledError, match=r"pylog-spark\[local\].*pylog-spark\[spark\]"):
        build_session()
    assert issubclass(SparkNotInstalledError, MissingSoftwareError)


def test_spark_finds_the_pandas_that_a_command_hides(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(SparkSession, "active", object)
    before = list(sys.meta_path)
    hide_pandas()
    assert sys.meta_path != before
    build_session()
    assert sys.meta_path == before


@pytest.mark.thorough
def test_importing_the_module_does_not_import_pyspark():
    program = "import sys, pylog_spark.session; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.spark
def test_the_session_has_what_was_chosen(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2]"


@pytest.mark.spark
def test_a_session_that_is_there_is_used_as_it_is(spark):
    again = build_session("local[7]", {"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert again.sparkContext.master == "local[2]"
    assert again.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
def test_workers_run_this_python(spark):
    def whoami(batches):
        import pyarrow as pa  # noqa: PLC0415 - on the worker

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1).mapInArrow(whoami, "python string").collect()
    assert [os.path.realpath(row.python) for row in rows] == [os.path.realpath(sys.executable)]


@pytest.mark.thorough
@pytest.mark.spark
def test_delta_tables_can_be_written_and_read(spark, tmp_path):
    table = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(table)
    spark.range(4).write.format("delta").mode("append").save(table)
    assert spark.read.format("delta").load(table).count() == 7


SECRETS = {"spark.hadoop.fs.s3a.secret.key": "pass word\\=#ü\n😀", "spark.driver.memory": "1g"}


@pytest.mark.thorough
def test_no_setting_stands_on_the_command_line_of_java(tmp_path):
    submit = tmp_path / "home" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    # In place of Spark's own: it writes down what it is told, and ends.
    submit.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "file = sys.argv[sys.argv.index('--properties-file') + 1]\n"
        "said = [sys.argv[1:], os.stat(file).st_mode & 0o777, open(file).read(),\n"
        "        os.environ.get('PYTHONSAFEPATH')]\n"
        f"json.dump(said, open({str(tmp_path / 'said')!r}, 'w'))\nsys.exit(1)\n"
    )
    submit.chmod(0o755)
    program = (
        "import os, sys\n"
        "from pyspark.errors import PySparkRuntimeError\n"
        "from pylog_spark.session import build_session\n"
        "try:\n"
        f"    build_session('local[1]', {SECRETS!r}, delta=False)\n"
        "except PySparkRuntimeError:\n"
        "    sys.exit('PYSPARK_SUBMIT_ARGS' in os.environ)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_SUBMIT_ARGS"}
    environment |= {"SPARK_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    arguments, mode, content, safe_path = json.loads((tmp_path / "said").read_text())
    # Some of its Pythons this JVM tells nothing but what it was told.
    assert safe_path == "1"
    assert arguments[::2] == ["--properties-file", "--load-spark-defaults"]
    assert arguments[3:] == ["pyspark-shell"]
    assert mode == 0o600
    told = javaproperties.loads(content)
    assert told.items() >= (SECRETS | {"spark.master": "local[1]"}).items()
    assert not Path(arguments[1]).exists()


def test_a_context_that_has_no_session_yet_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    monkeypatch.setattr(java_gateway, "launch_gateway", lambda: pytest.fail("launched"))
    session._start_spark({"spark.master": "local[1]"})


@pytest.mark.parametrize("equals", [" ", "="])
def test_what_the_user_says_to_spark_submit_stays(tmp_path, equals):
    theirs = tmp_path / "their file"
    theirs.write_text("spark.a=1\nspark.b=1\n")
    said = f"--jars 'a b.jar' --properties-file{equals}'{theirs}' --conf x=y pyspark-shell"
    arguments, content = submit_arguments(said, "/ours", {"spark.b": "2"})
    assert arguments == "--jars 'a b.jar' --properties-file /ours --conf x=y pyspark-shell"
    assert javaproperties.loads(content.decode()) == {"spark.a": "1", "spark.b": "2"}
    theirs.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        submit_arguments(said, "/ours", {})
