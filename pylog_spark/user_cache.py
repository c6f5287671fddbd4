"""Where this user's programs keep files that can be made again: a folder of the user's alone.

Programs are started from these folders and jars loaded, so a folder that others can write to, or
put another one in the place of, is never used.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "PYLOG_CACHE"


def cache_folder(name: str) -> Path:
    """Return the folder of that name in the first cache that can be used, made if need be.

    The candidates: ``PYLOG_CACHE``, the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``), a
    private folder in the system's folder for temporary files.

    Raises:
        OSError: There is none; the error is that of the last candidate.
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
    """Make the folder, or raise OSError where it is not ours, open to others or read-only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for level in (folder.parent, folder):
        facts = level.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
            raise PermissionError(f"{level}: belongs to somebody else, or others can write to it")
    # Who may write a folder above may put another one in this place, as sshd's StrictModes knows.
    for above in dict.fromkeys([*folder.parent.parents, *folder.parent.resolve().parents]):
        facts = above.stat()
        is_shared = facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX
        if is_shared or facts.st_uid not in {os.getuid(), 0}:
            raise PermissionError(
                f"{above}: belongs to somebody else, or others can write to it, and so replace "
                f"{folder.parent}, from which code is run"
            )
    with tempfile.TemporaryFile(dir=folder):
        return folder
