"""``pylog ingest`` and ``pylog materialize``: into and out of a managed root."""

from typing import Annotated, Final

import typer

from pylog_spark.cli.flags import said_flags
from pylog_spark.cli.options import (
    ConfigFiles,
    DryRun,
    Exclude,
    FileList,
    HighWatermark,
    LedgerUri,
    Master,
    Output,
    Topics,
)
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)

_MANAGED: Final = "A managed root: a path, or a URL."


@app.command(epilog="Example: `pylog ingest s3://backup/kafka s3://logs/managed --dry-run`")
def ingest(  # noqa: PLR0913  # one argument an option
    mirror: Annotated[
        str, typer.Argument(metavar="MIRROR", help="What a sync writes: a path, or a URL.")
    ],
    managed: Annotated[str, typer.Argument(metavar="MANAGED", help=_MANAGED)],
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    dry_run: DryRun = False,
    settle: Annotated[
        str,
        typer.Option(
            "--settle",
            metavar="TIME",
            help="Time between the two looks that have to agree about a segment.",
        ),
    ] = "60s",
    sync_stopped: Annotated[
        bool,
        typer.Option(
            "--sync-stopped",
            help="Nothing is written to the mirror any more: take the newest segments, too.",
        ),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Copy nothing: name the mirror's objects where they are. Needs --sync-stopped.",
        ),
    ] = False,
    high_watermark: HighWatermark = None,
    file_list: FileList = None,
    config_files: ConfigFiles = None,
    ledger: LedgerUri = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Take what a mirror has and a managed root has not yet: segments that are closed and settled.

    A segment is closed when the mirror has its successor. High watermarks are those of the mirror's
    own checkpoint file: what lies above them stays. Segments that overlap, or that come from
    several replicas, are refused. The managed root is made if it is not there; what it has is not
    copied again.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.transfer_runner import run_ingest  # noqa: PLC0415  # Spark, not for --help
    from pylog_spark.options.quantities import parse_duration_ms  # noqa: PLC0415
    from storage_core.maintenance.ingest.partition import IngestRules  # noqa: PLC0415  # numba

    rules = IngestRules(
        sync_has_stopped=sync_stopped,
        in_place=in_place,
        settle_ms=parse_duration_ms("--settle", settle),
    )
    status = run_ingest(mirror, managed, flags, rules, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)


@app.command(epilog="Example: `pylog materialize s3://logs/managed /var/lib/kafka-new`")
def materialize(  # noqa: PLR0913  # one argument an option
    managed: Annotated[str, typer.Argument(metavar="MANAGED", help=_MANAGED)],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Absent, empty, or begun by a killed run.")
    ],
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    dry_run: DryRun = False,
    config_files: ConfigFiles = None,
    ledger: LedgerUri = None,
    master: Master = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write partitions of a managed root as a plain log directory that Kafka opens.

    Of each partition one generation is written, whatever is committed meanwhile, with its
    checkpoints. A run that was killed is finished by starting it again.
    """
    flags = said_flags(locals())
    from pylog_spark.cli.transfer_runner import run_materialize  # noqa: PLC0415  # Spark

    status = run_materialize(managed, directory, flags, as_json=output is OutputFormat.JSON)
    if status:
        raise typer.Exit(status)
