"""The two ways in which every command that looks can answer, and files that receive an answer."""

import enum
import os
from pathlib import Path

from storage_core.errors import ConfigError


class OutputFormat(enum.StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"


def check_file_place(option: str, file: Path | None) -> None:
    """Refuse a file that could not be written at the end of a run, before the run begins.

    Args:
        option: That names it.
        file: The file; None for none.

    Raises:
        ConfigError: It is a directory, or its folder is not there or cannot be written.
    """
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir():
        raise ConfigError(option, file, "is a directory; expected the name of a file")
    if not folder.is_dir():
        raise ConfigError(option, file, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(option, file, f"this process may not write into {folder}")
