"""The SparkSession, built in one place.

Where somebody else has one, or has started the JVM (Databricks, ``spark-submit``, a notebook, a
Connect server), that one is used as it is: its owner has configured it. Else one is built for this
machine or the given master, with what pip alone does not settle: which Java, which Python the
workers run, Delta's jars, where the log goes.
"""

import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pylog_spark.java import (
    Exclusion,
    Java,
    Library,
    cache_folder,
    class_archive,
    fetch_jars,
    find_java,
    options_to_use,
)
from pylog_spark.without_pandas import show_pandas
from storage_core import interruption
from storage_core.errors import ConfigError, MissingSoftwareError
from storage_core.import_path import PACKAGE_HOME, SAFE_PATH_VARIABLE
from storage_core.interruption import removed_at_end
from storage_core.threads import BLAS_THREADS_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Hold Ctrl-C and SIGTERM during a step that must not be interrupted.
#
# While a session starts, pyspark waits for a file that its JVM writes into a folder. An exception
# in that wait removes the folder, the JVM fails to write, and a process without an owner stays for
# ever and keeps the terminal's or the pipe's other end open.

_HELD: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_signals() -> Iterator[None]:
    """Deliver signals when the block ends; a second does not wait.

    Nothing is held outside of the main thread, where no handlers run, nor in the program, whose
    handlers raise nothing.
    """
    if interruption.is_watched() or threading.current_thread() is not threading.main_thread():
        with interruption.ending_in_order():
            yield
        return
    former: dict[int, Any] = {}
    waiting: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        handler: Callable[[int, FrameType | None], Any] | int = former[number]
        if waiting and callable(handler):
            handler(number, frame)
        waiting.append(number)

    for held in _HELD:
        own_handler = signal.getsignal(held)
        if own_handler not in {None, signal.SIG_IGN}:
            former[held] = own_handler
            signal.signal(held, hold)
    try:
        yield
    finally:
        for number, handler in former.items():
            # Spark may have put a handler of its own there, which is the session's to keep.
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


DEFAULT_MASTER: Final = "local[*]"
_CONNECT_SCHEME: Final = "sc://"
# What Spark takes; of anything else its launcher says so in a traceback.
_MASTER: Final = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc)://.+")
# Driver and executors are one JVM.
_THREADS: Final = re.compile(r"local(\[|$)")
_THIS_HOST: Final = frozenset({"127.0.0.1", "localhost", "::1"})
# Each of these says that a session's JVM or server was started by somebody else.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_HOSTED_BY: Final = (_SUBMITTED, "DATABRICKS_RUNTIME_VERSION", "SPARK_REMOTE")
# Spark starts its Python workers with -m, in the working directory of the JVM.
_SAFE_WORKERS: Final = {f"spark.executorEnv.{SAFE_PATH_VARIABLE}": "1"}

_PYTHON_PATH: Final = "PYTHONPATH"
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES: Final = "--properties-file"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DRIVER_PATH: Final = "spark.driver.extraClassPath"
_EXECUTOR_PATH: Final = "spark.executor.extraClassPath"
_JARS: Final = "spark.jars"
_EXTENSIONS: Final = "spark.sql.extensions"
_JAR_KEYS: Final = (_JARS, "spark.jars.packages", _DRIVER_PATH)
# A JVM that ends with a job, whose work is done in Python, has most to do with its own classes: it
# compiles them quickly instead of well, and has one thread for its garbage.
_OF_A_JOB: Final = "-XX:TieredStopAtLevel=1"
_OWN_COLLECTOR: Final = "-XX:+UseSerialGC"
# Spark's own operators see a few rows of each task: to compile Java for them takes longer.
_OF_FEW_ROWS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Its workers are forked from one that has imported what they need.
_FORKED_WORKERS: Final = {"spark.python.daemon.module": "pylog_spark.engines.spark_daemon"}
_OF_ARCHIVES: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")
_COLLECTOR: Final = re.compile(r"-XX:[+]Use\w+GC\b")
# Lists: what the caller says of these is added to ours.
_SEPARATORS: Final = {
    JAVA_OPTIONS: " ",
    _DRIVER_PATH: ":",
    _EXECUTOR_PATH: ":",
    _JARS: ",",
    _EXTENSIONS: ",",
}
_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG: Final = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"
}
# Delta's own jars only: of everything else Spark has its own version, and that has to stay first.
_WITH_SPARK: Final = tuple(
    Exclusion(group=group, artifact="*")
    for group in (
        "com.fasterxml.jackson.core",
        "com.fasterxml.jackson.datatype",
        "com.github.luben",
        "com.google.code.findbugs",
        "commons-logging",
        "commons-pool",
        "io.airlift",
        "javax.annotation",
        "org.antlr",
        "org.apache.hadoop",
        "org.apache.logging.log4j",
        "org.apache.parquet",
        "org.locationtech.jts",
        "org.roaringbitmap",
        "org.scala-lang",
        "org.slf4j",
        "org.xerial.snappy",
    )
)


class SparkNotInstalledError(MissingSoftwareError):
    """There is no pyspark in this Python."""

    template = (
        "there is no pyspark in this Python: `--engine local` needs none; for Spark on this "
        "machine: pip install 'pylog-spark[local]' ('.[local]' in a checkout), with a Java of "
        "your own: 'pylog-spark[spark]'"
    )


def is_spark_installed() -> bool:
    """Whether there is a pyspark in this Python; looks, and imports nothing."""
    return find_spec("pyspark") is not None


def is_delta_installed() -> bool:
    """Whether there is a delta-spark in this Python; looks, and imports nothing."""
    return find_spec("delta") is not None


def has_session() -> bool:
    """Whether this process has a session, a JVM or a server."""
    if any(name in os.environ for name in _HOSTED_BY):
        return True
    if "pyspark" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    return SparkSession.getActiveSession() is not None


def build_session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    app_name: str = "pylog",
    delta: bool = True,
    is_of_job: bool = False,
) -> "SparkSession":
    """Return the session that is there, else build one.

    A session that is there, or whose JVM is, keeps its master; so does every setting of it that is
    fixed once Spark has started.

    Args:
        master: Spark master, ``sc://host:port`` of a Connect server, or None: ``local[*]``.
        conf: Settings; they win over what is chosen here.
        app_name: What Spark's pages and logs call the application.
        delta: Whether a session that is built here has to read and write Delta tables. Their jars
            are fetched on first use.
        is_of_job: Whether a session that is built here, on this machine, is one job's alone, whose
            work is done in Python: its JVM starts with half the work, and would run much of Spark's
            own code more slowly.
    """
    if master is not None and not _MASTER.fullmatch(master):
        expected = "local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT or sc://HOST:PORT"
        raise ConfigError("--master", master, f"expected {expected}")
    show_pandas()
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - pyspark is an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra
    except ModuleNotFoundError as error:
        raise SparkNotInstalledError from error
    try:
        return SparkSession.active()
    except PySparkRuntimeError:  # there is none yet
        pass
    builder = SparkSession.Builder()
    if master is not None and master.startswith(_CONNECT_SCHEME):
        builder = builder.remote(master)
        settings = dict(conf or {})
    elif any(name in os.environ for name in _HOSTED_BY):
        # Of a JVM without a session, what its Python workers are told can still be said.
        is_submitted = _SUBMITTED in os.environ
        settings = {**(_SAFE_WORKERS if is_submitted else {}), **(conf or {})}
    else:
        spark_master = master or DEFAULT_MASTER
        java = _prepare_environment(spark_master)
        builder = builder.master(spark_master).appName(app_name)
        settings = session_conf(
            spark_master, conf or {}, delta=delta, is_of_job=is_of_job, java=java
        )
        with held_signals(), _safe_workers():
            _start_spark({"spark.master": spark_master, "spark.app.name": app_name, **settings})
    for key, value in settings.items():
        builder = builder.config(key, value)
    with held_signals():
        return builder.getOrCreate()


def _start_spark(settings: Mapping[str, str]) -> None:
    """Start a JVM and Spark in it, unless that is there.

    pyspark itself says every setting as an argument of Java, and everybody on the machine may read
    those. A file says it here that nobody else may open, and that is gone when this returns.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - pyspark is an extra
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - pyspark is an extra

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # somebody's, without a session
        return
    gateway = SparkContext._gateway  # noqa: SLF001  # a JVM outlives the sessions in it
    if gateway is None:
        arguments_before = os.environ.get(_SUBMIT_ARGUMENTS)
        with (
            tempfile.NamedTemporaryFile(prefix="pylog-spark-", suffix=".conf") as file,
            removed_at_end(file.name),
        ):
            arguments, properties = submit_arguments(arguments_before, file.name, settings)
            file.write(properties)
            file.flush()
            os.environ[_SUBMIT_ARGUMENTS] = arguments
            try:
                gateway = launch_gateway()  # type: ignore[no-untyped-call]
            finally:
                if arguments_before is None:
                    del os.environ[_SUBMIT_ARGUMENTS]
                else:
                    os.environ[_SUBMIT_ARGUMENTS] = arguments_before
    # Spark asks for it at the first stage, and is busy itself until then.
    threading.Thread(target=_import_pandas, name="import pandas", daemon=True).start()
    SparkContext(conf=SparkConf().setAll(list(settings.items())), gateway=gateway)


def _import_pandas() -> None:
    with suppress(ImportError):  # Spark says it better
        import_module("pandas")


def submit_arguments(
    user_arguments: str | None, file: str, settings: Mapping[str, str]
) -> tuple[str, bytes]:
    """Return ``spark-submit`` arguments for a settings file, and its content.

    Args:
        user_arguments: The user's own arguments, as in ``PYSPARK_SUBMIT_ARGS``. What stands in a
            file that they name is taken over.
        file: Where the content is going to stand.
        settings: They win over that file, and over ``spark-defaults.conf``.
    """
    import javaproperties  # noqa: PLC0415  # XML; Spark alone needs it

    arguments = [
        part
        for argument in shlex.split(user_arguments or "pyspark-shell")
        for part in (
            argument.split("=", 1) if argument.startswith(f"{_PROPERTIES}=") else [argument]
        )
    ]
    properties: dict[str, str] = {}
    place = next((n for n, argument in enumerate(arguments) if argument == _PROPERTIES), None)
    if place is not None and place + 1 < len(arguments):
        theirs = Path(arguments[place + 1])
        try:
            properties = dict(javaproperties.loads(theirs.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigError(_SUBMIT_ARGUMENTS, theirs, f"cannot be read: {error}") from error
        arguments[place + 1] = file
    else:
        arguments = [_PROPERTIES, file, "--load-spark-defaults", *arguments]
    text = javaproperties.dumps({**properties, **settings}, timestamp=False)
    return shlex.join(arguments), text.encode("ascii")


def session_conf(
    master: str,
    conf: Mapping[str, str],
    *,
    delta: bool,
    is_of_job: bool = False,
    java: Java | None = None,
) -> dict[str, str]:
    """Return the settings of a session that is built here.

    Args:
        conf: The caller's settings; they win, and lists (class path, options for the JVM) are added
            to ours.
        java: What is going to run it. The JVM of a job begins with Spark's classes in memory, where
            ``pylog warmup`` has kept them; None: it reads them as ever.
    """
    is_quick = is_of_job and bool(_THREADS.match(master))
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        **_SAFE_WORKERS,
    }
    if _is_on_this_host(master):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 16)),
            # Nothing of ours is put there, but Spark makes it, by default in the current folder.
            "spark.sql.warehouse.dir": str(cache_folder("warehouse")),
        }
    if is_of_job:
        settings[f"spark.executorEnv.{BLAS_THREADS_VARIABLE}"] = "1"
    options = [_log_options()]
    if is_quick:
        settings |= {**_OF_FEW_ROWS, **_FORKED_WORKERS}
        options.append(_OF_A_JOB)
        # A JVM with two collectors does not start.
        options += [] if _COLLECTOR.search(conf.get(JAVA_OPTIONS, "")) else [_OWN_COLLECTOR]
    added = {}
    if delta:
        settings |= _DELTA_CATALOG
        added[_EXTENSIONS] = _DELTA_EXTENSION
    jars: list[Path] = []
    # Without a ledger, too, a job has them where they are: one archive of classes fits all jobs.
    has_theirs = any("delta" in conf.get(key, "") for key in _JAR_KEYS)
    if not has_theirs and (delta or (is_quick and _has_delta_jars())):
        ivy_settings = conf.get("spark.jars.ivySettings")
        jars = delta_jars(Path(ivy_settings) if ivy_settings else None)
        added |= _class_path(master, jars)
    if is_quick and java is not None:
        options += _shared_classes(java, jars, conf.get(JAVA_OPTIONS, ""))
    added[JAVA_OPTIONS] = _SEPARATORS[JAVA_OPTIONS].join(filter(None, options))
    settings |= conf
    for key, value in added.items():
        settings[key] = _SEPARATORS[key].join(filter(None, (value, conf.get(key))))
    return settings


def delta_jars(ivy_settings: Path | None = None) -> list[Path]:
    """Return Delta's jars for this Python's pyspark, fetched on first use.

    Args:
        ivy_settings: Ivy's settings, for repositories of one's own.
    """
    library = _delta_library()
    folder = _jar_folder(library)
    return fetch_jars([library], folder, exclusions=_WITH_SPARK, ivy_settings=ivy_settings)


def _has_delta_jars() -> bool:
    """Whether Delta's jars have been fetched."""
    return is_delta_installed() and _jar_folder(_delta_library()).is_dir()


def _jar_folder(library: Library) -> Path:
    return cache_folder("jars") / f"{library.artifact}-{library.version}"


def _delta_library() -> Library:
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - delta-spark is an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    # Which library goes with which Spark is known to Delta alone, and it tells only a builder.
    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    group, artifact, version = builder._options["spark.jars.packages"].split(":")  # noqa: SLF001
    return Library(group=group, artifact=artifact, version=version)


def _class_path(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """Return the settings for Delta's jars on driver and executors."""
    # Where the executors see our files this starts two seconds faster than to have Spark resolve,
    # copy and serve the jars every time.
    keys = [_DRIVER_PATH, _EXECUTOR_PATH] if _is_on_this_host(master) else [_JARS]
    return {key: _SEPARATORS[key].join(map(str, jars)) for key in keys}


def _shared_classes(java: Java, jars: Sequence[Path], options: str) -> tuple[str, ...]:
    """Return JVM options for Spark's class archive, if it exists.

    Args:
        jars: Of its class path, before Spark's own.
        options: The caller's options for it: whoever names an archive wants that one.
    """
    if any(option in options for option in _OF_ARCHIVES):
        return ()
    try:
        archive = class_archive(java, jars)
        return options_to_use(archive) if archive.exists() else ()
    except OSError:  # no cache: there is no archive
        return ()


def _prepare_environment(master: str) -> Java:
    """Set the environment variables for Spark; keep the user's. Spark reads some settings only
    there."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # What puts the command line of the JVM together is a JVM, too, for a moment.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"{_OF_A_JOB} {_OWN_COLLECTOR}")
    if _is_on_this_host(master):
        # Workers would run the python3 of the PATH, which has none of our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


@contextmanager
def _safe_workers() -> Iterator[None]:
    """Keep JVM-started Pythons from importing out of their working directory.

    Some of its Pythons it tells nothing but what it was told itself. What they find there by chance
    otherwise, our own packages in a checkout, they are told where to find.
    """
    names = (SAFE_PATH_VARIABLE, _PYTHON_PATH)
    before = {name: os.environ.get(name) for name in names}
    os.environ.setdefault(SAFE_PATH_VARIABLE, "1")
    path = before[_PYTHON_PATH]
    os.environ[_PYTHON_PATH] = os.pathsep.join(filter(None, (path, PACKAGE_HOME)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_on_this_host(master: str) -> bool:
    return master.startswith("local") or urlsplit(master).hostname in _THIS_HOST


def _log_options() -> str:
    """Return the JVM's options for a quiet log. The package or the checkout has its settings."""
    package = Path(__file__).parent
    for conf in (package / "conf", package.parent / "conf"):
        file = conf / "spark" / "log4j2.properties"
        if file.is_file():
            return f"-Dlog4j2.configurationFile={file.as_uri()}"
    return ""
