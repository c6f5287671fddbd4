"""``python -m tests.kit.trusted_folder FOLDER``: where `make run` may change a log directory.

That is FOLDER, unless it lies on a filesystem that a run refuses, as a checkout does that a laptop
shares into a container (virtiofs, 9p); then another one, which standard error names.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pylog_spark.java import cache_folder
from storage_core.store.filesystems import FilesystemKind, classify_filesystem, find_filesystem


def trusted_folder(wanted: Path) -> Path:
    """Return the first folder that can be trusted, made if need be."""
    wanted.mkdir(parents=True, exist_ok=True)
    for folder in _candidates(wanted):
        if classify_filesystem(find_filesystem(folder.resolve())) is FilesystemKind.SAFE:
            if folder != wanted:
                refused = find_filesystem(wanted.resolve())
                sys.stderr.write(
                    f"{wanted} lies on {refused}, where a run refuses to change anything; "
                    f"this one takes {folder}\n"
                )
            return folder
    sys.exit("neither the checkout, the user's cache nor TMPDIR lies on a disk; set TMPDIR to one")


def _candidates(wanted: Path) -> Iterator[Path]:
    yield wanted
    with suppress(OSError):  # nowhere a cache can be
        yield cache_folder("run")
    yield Path(tempfile.mkdtemp(prefix="pylog-run-"))


if __name__ == "__main__":
    sys.stdout.write(f"{trusted_folder(Path(sys.argv[1]))}\n")
