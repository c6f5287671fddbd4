"""A copy of this checkout without the cluster's packages: ``python -m tests.kit.without_cluster``.

What is left has to work by itself: the engine, upkeep, and their tests.
"""

import shutil
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_LEFT_OUT: Final = ("pylog_spark/cluster", "pylog_spark/log_directory.py", "storage_core/cluster")
# Not of the checkout itself, or made from it.
_MADE: Final = (".git", ".venv", ".cache", "build", "dist")


def copy_without_cluster(target: Path) -> None:
    """Copy the checkout to a folder, which is made anew, without the cluster's packages."""
    left_out = {_REPOSITORY / path for path in (*_LEFT_OUT, *_MADE, "tests/cluster")}

    def ignored(folder: str, names: list[str]) -> AbstractSet[str]:
        return {name for name in names if name == "__pycache__" or Path(folder, name) in left_out}

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_REPOSITORY, target, ignore=ignored, symlinks=True)


if __name__ == "__main__":
    copy_without_cluster(Path(sys.argv[1]))
