"""The schemas of a registry that a command line asks for: of its topic in the same roots, or of a
folder."""

from collections.abc import Sequence
from pathlib import Path

from pylog_spark.options.choices import BytesFormat
from storage_core.errors import ConfigError
from storage_core.kafka_log import open_logs
from storage_core.values.registry import SchemaRegistry, read_schema_folder


def read_schemas_of_roots(option: str, roots: Sequence[str]) -> SchemaRegistry:
    """Return the schemas that the registry's topic has in some roots.

    Args:
        option: What needs them, for an error.

    Raises:
        ConfigError: The roots have no such topic.
        PylogError: It cannot be read.
    """
    try:
        return open_logs(*roots).schema_registry()
    except ConfigError as error:
        reason = f"{error.reason}, or --schemas DIR"
        raise ConfigError(option, BytesFormat.REGISTRY, reason) from error


def read_schemas_of_folder(option: str, folder: Path) -> SchemaRegistry:
    """Return the schemas of files that are named by their numbers: ``7.avsc``, ``8.json``,
    ``9.proto``.

    Raises:
        ConfigError: There are none, or one cannot be read.
    """
    try:
        return read_schema_folder(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(option, folder, str(error)) from error
