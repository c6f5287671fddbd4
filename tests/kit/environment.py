"""Which variables of the caller reach the tests: a plugin of pytest that comes before all else.

A test means the same in a terminal, in CI, in an editor and in a container. So pytest, the
processes that share the tests and all that these start have these variables, and no others.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

# Where programs and their libraries are found, who calls, and how this machine reaches packages.
_KEPT: Final = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "JAVA_HOME", "USER", "LOGNAME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "GOPROXY", "GOSUMDB"),
    }
)
# Settings of the tests, of pip, of pytest's processes; checked reads of kernels are a target's own.
_KEPT_PREFIXES: Final = ("PYLOG_", "PIP_", "PYTEST_XDIST_", "NUMBA_BOUNDSCHECK")
# What a program would else take from the machine: its language, its time zone, its accounts.
_SET: Final = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "NO_PROXY": "127.0.0.1,localhost,::1",
    "no_proxy": "127.0.0.1,localhost,::1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "PYTHONNOUSERSITE": "1",
}
_OWN_HOME: Final = Path(__file__).resolve().parents[2] / ".cache" / "home"
# A socket's path has 107 bytes, of which pytest's folders and a test's file need the larger part.
_LONGEST_TMPDIR: Final = 40


def settled_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of tests that somebody with these variables starts."""
    kept = {
        name: value
        for name, value in caller.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    home, folder = caller.get("HOME", ""), caller.get("TMPDIR", "")
    kept["HOME"] = home if _is_usable(home) else str(_OWN_HOME)
    if _is_usable(folder) and len(folder) <= _LONGEST_TMPDIR and folder.replace("/", "").isalnum():
        kept["TMPDIR"] = folder
    return kept | _SET


def _is_usable(folder: str) -> bool:
    """Say whether files can be made in a folder; a read-only file system refuses root, too."""
    if not Path(folder).is_absolute():
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Give this process and its children the settled environment."""
    try:
        os.fstat(0)
    except OSError:  # closed: the next file that is opened would be everybody's standard input
        os.open(os.devnull, os.O_RDONLY)
    settled = settled_environment(os.environ)
    os.environ.clear()
    os.environ.update(settled)
    tempfile.tempdir = None  # what was found by the caller's TMPDIR
    if settled["HOME"] == str(_OWN_HOME):
        _OWN_HOME.mkdir(parents=True, exist_ok=True)
