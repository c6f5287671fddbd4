"""The off switch: a file of the owner against this program's changes. The file's name is no
segment's and no checkpoint's: a broker does not notice it."""

import os
from pathlib import Path
from typing import Final

from storage_core.catalog.roles import local_path
from storage_core.local_files import open_file
from storage_core.store.generations import unpinned
from storage_core.store.local import storage_errors
from storage_core.store.open_objects import MANAGED_PREFIX

OFF_SWITCH_FILE: Final = "pylog-off"
_MOST_BYTES: Final = 4096
_MOST_SHOWN: Final = 200


def is_switched_off(location: str) -> bool:
    """Whether a partition has an off switch.

    Args:
        location: Location of its directory; the switch works only on this machine.
    """
    directory = local_path(unpinned(location).removeprefix(MANAGED_PREFIX))
    return directory is not None and read_off_switch(directory) is not None


def read_off_switch(directory: Path) -> str | None:
    """Return the reason of a directory's off switch, None without one.

    Returns:
        The first line of the file, which may be empty.
    """
    path = directory / OFF_SWITCH_FILE
    with storage_errors(path):
        try:
            descriptor = open_file(path, may_be_link=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            return first_line(file.read(_MOST_BYTES))


def first_line(content: bytes) -> str:
    """Return the first line of a text, cut to fit a message."""
    lines = content[:_MOST_BYTES].decode(errors="replace").splitlines()
    return lines[0].strip()[:_MOST_SHOWN] if lines else ""
