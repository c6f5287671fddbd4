"""``pylog warmup``: compile the kernels before they are needed."""

import typer

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)


@app.command(epilog="Example: `pylog warmup`, in an image's build or on a fresh host")
def warmup() -> None:
    """Compile every kernel and keep the machine code on disk, so that no job waits for it.

    The code lies in the folder that PYLOG_KERNEL_CACHE names, else in the user's cache folder. It
    belongs to one version of this program and to one kind of CPU.
    """
    from pylog_spark.cli.warmup_kernels import warm_up  # noqa: PLC0415  # numba, not for --help

    typer.echo(warm_up())
