"""Keep the working directory, perhaps another user's, off Python's import path.

A log directory belongs to the broker's user. Whoever starts a job inside of one must not run the
``struct.py`` that lies there, with the rights of root. Python looks into the working directory
first when it is started with ``-m`` or ``-c``, unless ``-P`` or ``PYTHONSAFEPATH`` forbids it.

What is imported here is loaded before Python looks anywhere.
"""

import os
import sys
from typing import Final

# Environment variable with the effect of -P.
SAFE_PATH_VARIABLE: Final = "PYTHONSAFEPATH"
# The folder of these packages: a checkout, or one of the interpreter's own.
PACKAGE_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def safe_import_path() -> list[str]:
    """Return where this process takes modules from, but for the working directory.

    Where these packages lie is among it: they may be in a zip or a folder that only this process
    knows of, or in the working directory, if that is their checkout.
    """
    try:
        here = os.path.realpath(os.getcwd())  # noqa: PTH109
    except OSError:  # it was removed
        here = ""
    paths = [
        entry
        for entry in sys.path
        if entry and (entry == PACKAGE_HOME or os.path.realpath(entry) != here)
    ]
    return paths if PACKAGE_HOME in paths else [*paths, PACKAGE_HOME]


def leave_working_directory() -> None:
    """Take no module from the working directory any more."""
    sys.path[:] = safe_import_path()
