"""``pylog inspect``: log directories at a glance."""

from typing import Annotated

import typer

from pylog_spark.cli.exit_codes import ExitCode
from pylog_spark.cli.options import Exclude, Output, Topics
from pylog_spark.cli.output import OutputFormat

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog inspect /var/lib/kafka --topics 'orders-*' --segments`")
def inspect(
    roots: Annotated[
        list[str],
        typer.Argument(
            metavar="ROOT",
            help="Log directories or partition directories: paths or URLs.",
        ),
    ],
    *,
    topics: Topics = None,
    exclude: Exclude = None,
    segments: Annotated[
        bool, typer.Option("--segments", help="Also show every segment of each partition.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show partitions: segments, sizes, time span, offsets, and how dirty each log is.

    Nothing is written, no lock is taken, and no Spark is started. A partition that cannot be read
    is a row with its error; the exit status is then 4.
    """
    from pylog_spark.cli.inspect_roots import inspect_roots  # noqa: PLC0415  # rich, numba

    is_whole = inspect_roots(
        roots,
        include=tuple(topics or ()),
        exclude=tuple(exclude or ()),
        with_segments=segments,
        as_json=output is OutputFormat.JSON,
    )
    if not is_whole:
        raise typer.Exit(ExitCode.PARTLY_FAILED)
