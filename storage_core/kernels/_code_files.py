r"""Machine code on disk: in the user's cache, ready-made in the wheel.

Numba's own disk cache is keyed by the file that defines a function: it misses an edited callee or
constant in another file, fails to import on a read-only install, and recompiles for every
``--py-files`` zip. Folders here are named by a digest of all sources that a kernel can depend on
(``kernels`` and ``formats``), wherever they were loaded from. The root is the first folder that can
be written of: ``PYLOG_KERNEL_CACHE``, the user's cache folder, a private folder in the system's
temporary folder. Without any, kernels are compiled anew in every process.

A wheel brings code that needs neither numba nor a certain version of Python or NumPy, for the CPUs
that most machines have (`_cpu`). It lies beside the sources and is trusted as they are; the user's
own code, compiled for this very CPU, goes first.

One file has the code of one kernel for all signatures::

    pylog machine code 1 <entry> <bytes> <sha256>\n<object file> ...

The digest is against torn and flipped bytes: LLVM ends the process over some of them.
"""

import fcntl
import hashlib
import importlib
import importlib.util
import logging
import os
import pkgutil
import platform
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from storage_core.kernels._cpu import common_cpu, host_cpu, target_cpu
from storage_core.local_files import (
    create_in,
    open_in,
    open_own_folder,
    open_own_in,
    require_fixed_place,
)

CACHE_VARIABLE: Final = "PYLOG_KERNEL_CACHE"
_SOURCE_PACKAGES: Final = ("storage_core.formats", "storage_core.kernels")
_LAYER_PACKAGE: Final = "storage_core"
_LAYER: Final = "prebuilt"
_MAGIC: Final = "pylog machine code 1"
_MOST_HEAD_BYTES: Final = 1_000
# Numba's settings that make other code of the same sources.
_SETTINGS: Final = (
    *("NUMBA_BOUNDSCHECK", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT"),
    *("NUMBA_ENABLE_AVX", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE", "NUMBA_DEBUGINFO"),
)
# Nothing compiles for so long. Who waits longer waits for a process that was stopped.
_LONGEST_WAIT_SECONDS: Final = 60
_WAIT_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)


@cache
def source_digest() -> str:
    """Return a digest of every source that compiled code depends on."""
    digest = hashlib.sha256()
    for package_name in _SOURCE_PACKAGES:
        package = importlib.import_module(package_name)
        for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
            source = pkgutil.get_data(package_name, f"{name}.py") or b""
            digest.update(f"{package_name}.{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:24]


def _own_digest() -> str:
    """Return a digest of sources, CPU, numba and settings. Code compiled here depends on all of
    them, and on nothing else."""
    cpu = target_cpu()
    settings = [f"{name}={os.environ.get(name)}" for name in _SETTINGS]
    text = f"{source_digest()} {cpu.name} {sorted(cpu.features)} {settings}"
    return hashlib.sha256(text.encode() + _numba_version()).hexdigest()[:24]


def _numba_version() -> bytes:
    """Return what tells versions of numba apart, without its import."""
    spec = importlib.util.find_spec("numba")
    places = spec.submodule_search_locations if spec else None
    return (Path(places[0]) / "_version.py").read_bytes() if places else b""


def _candidate_roots() -> Iterator[Path]:
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        yield Path(folder)
        return
    user_cache = os.environ.get("XDG_CACHE_HOME") or _user_cache()
    if user_cache:
        yield Path(user_cache) / "pylog" / "kernels"
    with suppress(FileNotFoundError):  # there is no temporary folder that can be written
        private = Path(tempfile.gettempdir()) / f"pylog-kernels-{os.getuid()}"
        # Anybody may have made a folder of that name before.
        if _is_usable(private):
            yield private


def _user_cache() -> Path | None:
    with suppress(RuntimeError):  # no home directory is known for this user
        return Path.home() / ".cache"
    return None


def _is_usable(folder: Path) -> bool:
    """Whether folder is ours alone and can be written. The code in it will be run: nobody else
    may change it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        require_fixed_place(folder)
        with open_own_folder(folder), tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def cache_folder() -> Path | None:
    """Return the folder of compiled kernels, None where nothing can be written."""
    for root in _candidate_roots():
        folder = root / _own_digest()
        if _is_usable(folder):
            return folder
    return None


@cache
def layer_folder() -> str | None:
    """Return the folder of ready-made code, None where it is unusable.

    The folder lies beside the package; its code may not be for this machine or these settings.
    Whether the wheel has such a folder is seen when a file of it is read.
    """
    cpu = common_cpu()
    settings = [name for name in _SETTINGS if name in os.environ]
    if cpu is None or settings:
        _log.debug("kernels are compiled here: %s", settings or "none are ready for this machine")
        return None
    lacking = cpu.features - host_cpu().features
    if lacking:
        text = "kernels are compiled here: this CPU is no %s, it lacks %s"
        _log.debug(text, cpu.name, ", ".join(sorted(lacking)))
        return None
    return layer_name()


def layer_name() -> str:
    """Return the folder name of ready-made code for these sources."""
    cpu = common_cpu()
    return f"{_LAYER}/{source_digest()}-{platform.machine()}-{cpu.name if cpu else None}"


def read_code(kernel: str) -> dict[str, bytes]:
    """Return a kernel's machine code on disk, by entry. Code in the user's cache goes before
    that in the wheel."""
    return _layer_code(kernel) | _own_code(kernel)


def _own_code(kernel: str) -> dict[str, bytes]:
    """Return a kernel's machine code in the user's cache, by entry. Code that somebody else may
    have put there is left out, so it is never run."""
    folder = cache_folder()
    if folder is not None:
        with suppress(OSError), open_own_folder(folder) as opened:
            descriptor = open_own_in(opened, _file_name(kernel))
            with os.fdopen(descriptor, "rb") as file:
                return _parse(file.read(), str(folder / _file_name(kernel)))
    return {}


def _layer_code(kernel: str) -> dict[str, bytes]:
    folder = layer_folder()
    if folder is not None:
        name = f"{folder}/{kernel}.bin"
        with suppress(OSError):
            return _parse(pkgutil.get_data(_LAYER_PACKAGE, name) or b"", name)
    return {}


def keep_code(kernel: str, entry: str, code: bytes) -> None:
    """Add the code of an entry to the user's cache. Entries that are there stay. An error of the
    file system is ignored."""
    folder = cache_folder()
    if folder is None:
        return
    code_by_entry = _own_code(kernel) | {entry: code}
    scratch_name = f"{_file_name(kernel)}-{secrets.token_hex(8)}"
    with suppress(OSError), open_own_folder(folder) as opened:
        try:
            with os.fdopen(create_in(opened, scratch_name), "wb") as file:
                file.write(b"".join(_block(name, data) for name, data in code_by_entry.items()))
            os.replace(scratch_name, _file_name(kernel), src_dir_fd=opened, dst_dir_fd=opened)
        except OSError:
            os.unlink(scratch_name, dir_fd=opened)
            raise


@contextmanager
def only_here(kernel: str) -> Iterator[None]:
    """Let one process of this host compile a kernel; others wait.

    The others wait for the code that it writes. Where locks do not work, or the other process takes
    very long, both compile it.
    """
    folder = cache_folder()
    if folder is None:
        yield
        return
    try:
        with open_own_folder(folder) as opened:
            lock = open_in(opened, f"{kernel}.lock", os.O_WRONLY | os.O_CREAT)
    except OSError:
        yield
        return
    with os.fdopen(lock, "wb") as file:
        end = time.monotonic() + _LONGEST_WAIT_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_WAIT_SECONDS)
            except OSError:
                break
            else:
                break
        yield


def _file_name(kernel: str) -> str:
    return f"{kernel}.bin"


def _block(entry: str, code: bytes) -> bytes:
    head = f"{_MAGIC} {entry} {len(code)} {hashlib.sha256(code).hexdigest()}\n"
    return head.encode() + code


def _parse(data: bytes, file: str) -> dict[str, bytes]:
    """Return the code in a file, by entry. Entries are read up to the first that is not whole."""
    code_by_entry: dict[str, bytes] = {}
    position = 0
    while position < len(data):
        end = data.find(b"\n", position, position + _MOST_HEAD_BYTES)
        head = data[position:end].decode("ascii", "replace").split(" ") if end >= 0 else []
        if " ".join(head[:-3]) != _MAGIC or not head[-2].isdecimal():
            _log.warning("%s: position %d: expected machine code, found none", file, position)
            break
        entry, length, digest = head[-3:]
        code = data[end + 1 : end + 1 + int(length)]
        if hashlib.sha256(code).hexdigest() != digest:
            _log.warning("%s: position %d: the machine code is damaged", file, position)
            break
        code_by_entry[entry] = code
        position = end + 1 + len(code)
    return code_by_entry
