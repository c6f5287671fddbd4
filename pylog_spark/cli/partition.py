"""``pylog partition``: one partition directory, in this process, without Spark.

For surgery and for tests: it does what Kafka does, without the guards of the jobs but for those of
a round of compaction. Each command plans in a module of its own; here is which directory a person
means, and how a command ends.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import DRY_RUN
from pylog_spark.options.option import CommandLine
from pylog_spark.text import to_json
from storage_core.commit import commit
from storage_core.errors import ConfigError, InvalidNameError, PartitionNotFoundError, located
from storage_core.filenames import parse_partition_directory, parse_renamed_directory
from storage_core.json_values import to_plain
from storage_core.log.loaded_log import LoadedLog
from storage_core.store import LocalStore


def named_log_directory(directory: Path) -> Path:
    """Return the real path of a partition directory, also if renamed."""
    if not directory.is_dir():
        raise PartitionNotFoundError(str(directory))
    if parse_renamed_directory(directory.resolve().name) is None:
        return named_partition_directory(directory)
    return _led_to(directory)


def named_partition_directory(directory: Path) -> Path:
    """Return where a partition directory is that a person named."""
    if not directory.is_dir():
        raise PartitionNotFoundError(str(directory))
    try:
        parse_partition_directory(directory.resolve().name)
    except InvalidNameError as error:
        raise ConfigError("DIR", directory, str(error)) from error
    return _led_to(directory)


def _led_to(directory: Path) -> Path:
    """Return the target of a link. The person who names a link means its target."""
    return directory.resolve() if directory.is_symlink() else directory


def commit_or_describe(
    line: CommandLine, log: LoadedLog, result: Any, describe: Callable[[], dict[str, Any]]
) -> int:
    """Commit a log's operations or describe them; print JSON.

    Args:
        describe: Returns what only a dry run says.
    """
    answer: dict[str, Any] = to_plain(result)
    if line[DRY_RUN]:
        answer = {"dry_run": True} | answer | describe()
    else:
        located(commit)(log.plan, LocalStore(Path(log.location)))
    typer.echo(to_json(answer))
    return ExitCode.DONE
