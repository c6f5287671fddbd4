"""``pylog partition``: one partition directory, in this process, without Spark.

For surgery and for tests: it does what Kafka does, without the guards of the jobs. What is heavy
is imported when a command runs, not for its help.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pylog_spark.cli.arguments import parse_factor, parse_offset, parse_size
from storage_core.errors import ConfigError, InvalidNameError, PartitionNotFoundError
from storage_core.filenames import parse_partition_directory, parse_renamed_directory

app = typer.Typer(
    name="partition",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Work on one partition directory, in this process: for surgery and tests.",
)

_EXAMPLE: Final = (
    "Example: pylog partition clean /backup/orders-0 --now-ms 1795251360000 "
    "--set cleanup.policy=compact --first-dirty-offset 0"
)


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Partition directory, named TOPIC-PARTITION.")
]
Clock = Annotated[
    int, typer.Option(parser=parse_offset, metavar="MS", help="The clock, epoch milliseconds.")
]
WholeConfig = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Kafka's or our key; the whole config."),
]
HighWatermark = Annotated[
    int | None,
    typer.Option(parser=parse_offset, metavar="N", help="Default: the log end offset."),
]
LogStart = Annotated[
    int,
    typer.Option(parser=parse_offset, metavar="N", help="Its log-start checkpoint. Default: 0."),
]


@app.command(epilog=_EXAMPLE)
def clean(  # noqa: PLR0913  # one argument an option
    directory: Directory,
    *,
    now_ms: Clock,
    settings: WholeConfig = None,
    first_dirty_offset: Annotated[
        int | None,
        typer.Option(parser=parse_offset, metavar="N", help="Clean from here on, due or not."),
    ] = None,
    first_uncleanable_offset: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset, metavar="N", help="Stop here; only with --first-dirty-offset."
        ),
    ] = None,
    cleaner_checkpoint: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset,
            metavar="N",
            help="The partition's cleaner checkpoint, where Kafka is to choose the range.",
        ),
    ] = None,
    high_watermark: HighWatermark = None,
    log_start_offset: Annotated[
        int | None,
        typer.Option(parser=parse_offset, metavar="N", help="Its log-start checkpoint, if any."),
    ] = None,
    offset_map_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset,
            metavar="N",
            help="Memory of the offset map, 24 a key. Default: 128 MiB.",
        ),
    ] = None,
    load_factor: Annotated[
        float | None,
        typer.Option(
            parser=parse_factor, metavar="F", help="Share of it that may be used. Default: 0.9."
        ),
    ] = None,
    io_buffer_bytes: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="N", help="Kafka's buffer. Default: 524288."),
    ] = None,
    max_io_buffer_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_size, metavar="N", help="What it may grow to. Default: 67108864."
        ),
    ] = None,
    then_retain: Annotated[
        bool, typer.Option("--then-retain", help="Make the deletion pass after the round.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done to files; change nothing.")
    ] = False,
) -> None:
    """Run one round of Kafka's cleaner on a partition and print its answer as one JSON object.

    Without --first-dirty-offset the range is chosen as Kafka chooses it: from the cleaner
    checkpoint, the dirty ratio and the compaction lags. The log must have been closed cleanly.
    """
    from pylog_spark.cli.partition_clean import CleanArguments, run_clean  # noqa: PLC0415  # numba

    if first_uncleanable_offset is not None and first_dirty_offset is None:
        raise ConfigError(
            "--first-uncleanable-offset",
            first_uncleanable_offset,
            "needs --first-dirty-offset; without it the range is Kafka's own choice",
        )
    if first_dirty_offset is not None and cleaner_checkpoint is not None:
        raise ConfigError(
            "--cleaner-checkpoint",
            cleaner_checkpoint,
            "says where Kafka's choice begins, --first-dirty-offset leaves no choice",
        )
    directory = named_partition_directory(directory)
    answer = run_clean(
        CleanArguments(
            directory=directory,
            now_ms=now_ms,
            settings=tuple(settings or ()),
            first_dirty_offset=first_dirty_offset,
            first_uncleanable_offset=first_uncleanable_offset,
            cleaner_checkpoint=cleaner_checkpoint,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            cleaner=_given(
                dedupe_buffer_bytes=offset_map_bytes,
                load_factor=load_factor,
                io_buffer_bytes=io_buffer_bytes,
                max_io_buffer_bytes=max_io_buffer_bytes,
            ),
            then_retain=then_retain,
            dry_run=dry_run,
        )
    )
    typer.echo(answer)


_RECOVER_EXAMPLE: Final = (
    "Example: pylog partition recover /backup/orders-0 --now-ms 1795251360000 --dry-run"
)
_RETAIN_EXAMPLE: Final = (
    "Example: pylog partition retain /backup/orders-0 --now-ms 1795251360000 "
    "--set retention.ms=86400000 --dry-run"
)
_TRUNCATE_EXAMPLE: Final = (
    "Example: pylog partition truncate /backup/orders-0 --now-ms 1795251360000 --to 4711 --dry-run"
)


@app.command(epilog=_RECOVER_EXAMPLE)
def recover(  # noqa: PLR0913  # one argument an option
    directory: Directory,
    *,
    now_ms: Clock,
    settings: WholeConfig = None,
    recovery_point: Annotated[
        int,
        typer.Option(
            parser=parse_offset, metavar="N", help="Its recovery-point checkpoint. Default: 0."
        ),
    ] = 0,
    log_start_offset: LogStart = 0,
    clean_shutdown: Annotated[
        bool,
        typer.Option(
            "--clean-shutdown", help="Load it as after a clean shutdown: nothing is verified."
        ),
    ] = False,
    no_truncate: Annotated[
        bool,
        typer.Option("--no-truncate", help="Change nothing where something would be cut."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read everything, print what would be cut and done; change nothing."
        ),
    ] = False,
) -> None:
    """Load a partition as a broker does after a crash, and close it cleanly.

    Segments from the recovery point on are read and checked, their indexes and the producer state
    rebuilt; what is not a valid batch is cut, with everything after it. **Cutting is a broker's
    rule**: it fetches the rest from other replicas. On a copy, look at --dry-run first.
    """
    from pylog_spark.cli.partition_recover import run_recover  # noqa: PLC0415  # numba

    directory = named_log_directory(directory)
    typer.echo(
        run_recover(
            directory,
            now_ms=now_ms,
            settings=tuple(settings or ()),
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean_shutdown=clean_shutdown,
            no_truncate=no_truncate,
            dry_run=dry_run,
        )
    )


@app.command(epilog=_RETAIN_EXAMPLE)
def retain(
    directory: Directory,
    *,
    now_ms: Clock,
    settings: WholeConfig = None,
    high_watermark: HighWatermark = None,
    log_start_offset: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset, metavar="N", help="Raise the log start there, as DeleteRecords."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would go, and why; change nothing.")
    ] = False,
) -> None:
    """Make Kafka's deletion pass over a log: what is below its start, too large, too old.

    The log must have been closed cleanly. Segments go from the oldest on, up to the first that
    stays; if all of them go, an empty one takes their place.
    """
    from pylog_spark.cli.partition_retain import run_retain  # noqa: PLC0415  # numba

    directory = named_log_directory(directory)
    typer.echo(
        run_retain(
            directory,
            now_ms=now_ms,
            settings=tuple(settings or ()),
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            dry_run=dry_run,
        )
    )


@app.command(epilog=_TRUNCATE_EXAMPLE)
def truncate(  # noqa: PLR0913  # one argument an option
    directory: Directory,
    *,
    now_ms: Clock,
    to: Annotated[
        int,
        typer.Option("--to", parser=parse_offset, metavar="N", help="Where the log is to end."),
    ],
    settings: WholeConfig = None,
    log_start_offset: LogStart = 0,
    cleaner_checkpoint: Annotated[
        int | None,
        typer.Option(
            parser=parse_offset, metavar="N", help="Its cleaner checkpoint; the answer has the new."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be cut and done; change nothing.")
    ] = False,
) -> None:
    """Cut a log down to an offset, as a replica does that follows a new leader.

    The log must have been closed cleanly. The batch that reaches the offset goes as a whole; so do
    index entries, producer snapshots and leader epochs at or above it.
    """
    from pylog_spark.cli.partition_recover import run_truncate  # noqa: PLC0415  # numba

    directory = named_log_directory(directory)
    typer.echo(
        run_truncate(
            directory,
            now_ms=now_ms,
            settings=tuple(settings or ()),
            to=to,
            log_start_offset=log_start_offset,
            cleaner_checkpoint=cleaner_checkpoint,
            dry_run=dry_run,
        )
    )


def named_log_directory(directory: Path) -> Path:
    """Return where a partition directory is that a person named, one that Kafka renamed too.

    Raises:
        PartitionNotFoundError: There is no such directory.
        ConfigError: Its name is none of a partition directory.
    """
    if not directory.is_dir():
        raise PartitionNotFoundError(str(directory))
    if parse_renamed_directory(directory.resolve().name) is None:
        return named_partition_directory(directory)
    return _led_to(directory)


def named_partition_directory(directory: Path) -> Path:
    """Return where a partition directory is that a person named.

    Raises:
        PartitionNotFoundError: There is no such directory.
        ConfigError: Its name is not ``<topic>-<partition>``.
    """
    if not directory.is_dir():
        raise PartitionNotFoundError(str(directory))
    try:
        parse_partition_directory(directory.resolve().name)
    except InvalidNameError as error:
        raise ConfigError("DIR", directory, str(error)) from error
    return _led_to(directory)


def _led_to(directory: Path) -> Path:
    """Return what a link leads to: that is what the person who names it means."""
    return directory.resolve() if directory.is_symlink() else directory


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
