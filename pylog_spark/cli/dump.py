"""``pylog dump``: the content of one file, or of all files of a partition."""

import enum
from typing import Annotated

import typer

from pylog_spark.cli.exit_codes import ExitCode
from pylog_spark.cli.options import Output
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


class Isolation(enum.StrEnum):
    """Which records are shown."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@app.command(
    epilog="Example: `pylog dump /var/lib/kafka/orders-0/00000000000000000000.log --output json`"
)
def dump(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A file of a partition, or its directory: a path or a URL."
        ),
    ],
    *,
    output: Output = OutputFormat.TABLE,
    isolation: Annotated[
        Isolation, typer.Option(help="read_committed leaves out aborted and control records.")
    ] = Isolation.READ_UNCOMMITTED,
) -> None:
    """Print batches and records of a segment, or the entries of an index, snapshot or checkpoint.

    Nothing is written, and no lock is taken. Where bytes are bad the file ends with an error line
    that says where, the next file goes on, and the exit status is 4.
    """
    from pylog_spark.cli.dump_files import dump_path  # noqa: PLC0415  # numba, not for --help

    is_whole = dump_path(
        path,
        as_json=output is OutputFormat.JSON,
        committed_only=isolation is Isolation.READ_COMMITTED,
    )
    if not is_whole:
        raise typer.Exit(ExitCode.PARTLY_FAILED)
