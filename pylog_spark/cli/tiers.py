"""Roots of a command line that are tiers (KIP-405) or buckets: what they are read with, and what
that took."""

from collections.abc import Iterable

from pylog_spark.cli.error_text import write_line
from pylog_spark.options.declared import DECRYPTION_KEY, ROOTS, TOPIC_ID, WITH_LOCAL
from pylog_spark.options.option import CommandLine
from storage_core.roots.open_root import tiers_with
from storage_core.store.requests import REQUESTS


def with_tiers(line: CommandLine) -> CommandLine:
    """Return a command line whose roots say what its tiers are read with."""
    return line.with_written({ROOTS: list(locate_tiers(line, line[ROOTS]))})


def locate_tiers(line: CommandLine, roots: Iterable[str]) -> tuple[str, ...]:
    """Return roots that say what a command line reads tiers with."""
    key = line[DECRYPTION_KEY]
    return tiers_with(
        roots,
        with_local=line[WITH_LOCAL],
        decryption_key=None if key is None else str(key.absolute()),
        topic_ids=line[TOPIC_ID],
    )


def tell_requests(places: Iterable[str]) -> None:
    """Write to standard error what this process and its tasks have asked of S3, if one of some
    places is there."""
    if not any("s3://" in place for place in places):
        return
    from pylog_spark.report import size_text  # noqa: PLC0415  # who asks no S3 does not wait for it

    asked = REQUESTS.copy()
    write_line(asked.text(size_text(asked.read_bytes)))
