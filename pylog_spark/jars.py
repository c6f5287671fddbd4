"""Fetch Java libraries once, with the Ivy that every pyspark brings along.

A set of jars is one folder, complete as soon as it is there: it is filled under another name and
renamed. Processes that want the same set at the same time wait for the first one.
"""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from pylog_spark.java import MissingSoftwareError, find_java
from pylog_spark.java_trust import TRUST_STORE_PASSWORD, write_trust_store
from storage_core.temporary_folder import temporary_folder

_FETCH_TIMEOUT_S: Final = 900
_FILE_PATTERN: Final = "[artifact]-[revision](-[classifier]).[ext]"
# What Java says when it does not know the authority behind a server's certificate.
_UNTRUSTED: Final = "PKIX path building failed"
_SHOWN_LINES: Final = 12


class JarsUnavailableError(MissingSoftwareError):
    """Java libraries are not on this machine and cannot be fetched."""

    template = "{libraries}: cannot be fetched: {reason}"

    libraries: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library in a Maven repository; its text is ``group:artifact:version``."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Unwanted libraries, excluded from the dependencies of wanted ones.

    ``*`` matches all.
    """

    group: str
    artifact: str


def fetch_jars(
    libraries: Sequence[Library],
    folder: Path,
    *,
    exclusions: Sequence[Exclusion] = (),
    ivy_settings: Path | None = None,
) -> list[Path]:
    """Return the jars of libraries and of their dependencies, fetching missing ones.

    Args:
        folder: Where the jars are to lie. Its name has to tell this set from any other one.
        ivy_settings: Ivy's own settings file, for repositories of one's own; None: the public one.

    Returns:
        The jars, by name, so that a class path made of them is always the same.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_process(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _fetch(libraries, folder, exclusions, ivy_settings)
    return sorted(folder.glob("*.jar"))


@contextmanager
def _only_process(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(
    libraries: Sequence[Library],
    folder: Path,
    exclusions: Sequence[Exclusion],
    ivy_settings: Path | None,
) -> None:
    names = ", ".join(map(str, libraries))
    with temporary_folder(f".{folder.name}-", folder.parent) as scratch:
        (scratch / "ivy.xml").write_text(_ivy_module(libraries, exclusions))
        command = [
            str(find_java().executable),
            f"-Divy.default.ivy.user.dir={scratch / 'ivy'}",
            *("-jar", str(_ivy_jar(names)), "-warn"),
            *(("-settings", str(ivy_settings)) if ivy_settings else ()),
            *("-ivy", str(scratch / "ivy.xml"), "-cache", str(scratch / "cache")),
            *("-confs", "default", "-types", "jar", "bundle"),
            *("-retrieve", str(scratch / "jars" / _FILE_PATTERN)),
        ]
        result = _run(command, names)
        if result.returncode != 0 and _UNTRUSTED in result.stdout:
            store = scratch / "trust.jks"
            write_trust_store(store)
            command[1:1] = [
                f"-Djavax.net.ssl.trustStore={store}",
                f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
            ]
            result = _run(command, names)
        if result.returncode != 0 or not any((scratch / "jars").glob("*.jar")):
            raise JarsUnavailableError(names, _last_lines(result.stdout))
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "jars").rename(folder)


def _run(command: list[str], names: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - Java and Ivy as found, arguments of our own making
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(names, f"no answer in {_FETCH_TIMEOUT_S} s") from error


def _ivy_jar(names: str) -> Path:
    pyspark = find_spec("pyspark")
    folders = (pyspark.submodule_search_locations if pyspark else None) or []
    jars = [jar for folder in folders for jar in Path(folder, "jars").glob("ivy-*.jar")]
    if not jars:
        raise JarsUnavailableError(names, "needs pyspark: pip install 'pylog-spark[local]'")
    return jars[0]


def _ivy_module(libraries: Sequence[Library], exclusions: Sequence[Exclusion]) -> str:
    wanted = "".join(
        f"<dependency org={quoteattr(library.group)} name={quoteattr(library.artifact)} "
        f'rev={quoteattr(library.version)} conf="default->default"/>'
        for library in libraries
    )
    unwanted = "".join(
        f"<exclude org={quoteattr(exclusion.group)} module={quoteattr(exclusion.artifact)}/>"
        for exclusion in exclusions
    )
    return (
        '<ivy-module version="2.0"><info organisation="pylog" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}{unwanted}</dependencies></ivy-module>\n"
    )


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip(" \t:")]
    return " | ".join(lines[-_SHOWN_LINES:]) or "Ivy gave no reason"
