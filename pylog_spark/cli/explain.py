"""``pylog explain``: why a partition is not cleaned, not deleted, or so big."""

import typer

from pylog_spark.cli.exit_codes import ExitCode
from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    AssumeDefaults,
    ConfigFiles,
    Exclude,
    GuessedRole,
    HighWatermark,
    NowMs,
    Output,
    Roots,
    ServerProperties,
    Settings,
    TopicDump,
    Topics,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog explain /var/lib/kafka --topics 'orders-*'`")
def explain(  # noqa: PLR0913  # one argument an option
    roots: Roots,
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    role: GuessedRole = None,
    config_files: ConfigFiles = None,
    server_properties: ServerProperties = None,
    topic_dump: TopicDump = None,
    settings: Settings = None,
    assume_defaults: AssumeDefaults = None,
    high_watermark: HighWatermark = None,
    now_ms: NowMs = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say why partitions are not cleaned, not deleted, or so big, and from when on they will be.

    Predicate by predicate, in the order in which Kafka asks, with the numbers: policy, dirty ratio,
    lags, last stable offset and the transaction that holds it, active segment, high watermark,
    retention by size and age, timestamps in the future. Read only; no Spark is started.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.explain_roots import explain_roots  # noqa: PLC0415  # rich, numba

    is_whole = explain_roots(roots, flags, as_json=output is OutputFormat.JSON)
    if not is_whole:
        raise typer.Exit(ExitCode.PARTLY_FAILED)
