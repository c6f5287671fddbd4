"""Spare a process the import of pandas.

pyarrow imports pandas, if there is one, to ask whether a list is a ``Series``: a fifth of a second
in each process that makes an array.
"""

import sys
from typing import Final


class _Hidden:
    """Finds no pandas, and says so before others look for it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is hidden from this process", name=fullname)


_hidden: Final = _Hidden()


def hide_pandas() -> None:
    """Let this process, which is ours, be one without pandas, unless it has imported it."""
    if _hidden not in sys.meta_path:
        sys.meta_path.insert(0, _hidden)


def show_pandas() -> None:
    """Let pandas be imported again: PySpark asks for it."""
    if _hidden in sys.meta_path:
        sys.meta_path.remove(_hidden)
