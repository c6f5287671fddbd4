"""``pylog partition``: one partition directory, in this process, without Spark.

For surgery and for tests: it does what Kafka does, without the guards of the jobs. Each command is
in a module of its own; here is which directory a person means.
"""

from pathlib import Path

from storage_core.errors import ConfigError, InvalidNameError, PartitionNotFoundError
from storage_core.filenames import parse_partition_directory, parse_renamed_directory


def named_log_directory(directory: Path) -> Path:
    """Return the real path of a partition directory, also if renamed.

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
    """Return the target of a link.

    The person who names a link means its target.
    """
    return directory.resolve() if directory.is_symlink() else directory
