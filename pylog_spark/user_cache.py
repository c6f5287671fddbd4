"""This user's cache folder, private and safe to delete. Its files can be created anew.

Programs are started from these folders and jars loaded, so a folder that others can write to, or
put another one in the place of, is never used.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_core.local_files import require_fixed_place

CACHE_VARIABLE: Final = "PYLOG_CACHE"


def cache_folder(name: str) -> Path:
    """Return a named folder in the first usable cache, made if needed.

    The candidates: ``PYLOG_CACHE``, the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``), a
    private folder in the system's folder for temporary files.
    """
    *roots, last = _candidate_roots()
    for root in roots:
        with suppress(OSError):
            return _make_private(root / name)
    return _make_private(last / name)


def _candidate_roots() -> list[Path]:
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return [Path(folder).absolute()]
    roots = []
    user_cache = os.environ.get("XDG_CACHE_HOME")
    if user_cache:
        roots.append(Path(user_cache).absolute() / "pylog")
    else:
        with suppress(RuntimeError):  # no home directory is known for this user
            roots.append(Path.home() / ".cache" / "pylog")
    roots.append(Path(tempfile.gettempdir()) / f"pylog-{os.getuid()}")
    return roots


def _make_private(folder: Path) -> Path:
    """Make the folder private; raise OSError if it cannot be. It may be another user's, open to
    others, or read-only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for level in (folder.parent, folder):
        facts = level.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
            raise PermissionError(f"{level}: belongs to somebody else, or others can write to it")
    require_fixed_place(folder.parent)
    with tempfile.TemporaryFile(dir=folder):
        return folder
