"""``python -m tests.kit.aarch64_python``: a Python of aarch64, run by this machine's processor.

QEMU translates the instructions of one process at a time; what they ask of Linux, this Linux does.
It and the Python come from Debian's packages, which are unpacked below ``build`` and installed
nowhere: that needs apt and no root. What the project depends on comes as wheels, of the versions
that ``conf/requirements.lock`` says. ``build/aarch64/bin/python`` is used as any other Python.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[2]
_FOLDER: Final = _REPOSITORY / "build" / "aarch64"
_LOCK: Final = _REPOSITORY / "conf" / "requirements.lock"
_QEMU: Final = "qemu-user-static"
_LIBRARIES: Final = ("python3", "libstdc++6")  # with what they depend on
_TEST_TOOLS: Final = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
# Else, to root, it says that its own user may not write here.
_AS_THIS_USER: Final = "APT::Sandbox::User="
_APT: Final = Template("""\
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Debug::NoLocking "true";
Dir::Cache "${folder}/cache";
Dir::State "${folder}/state";
Dir::State::status "${folder}/status";
""")
# LLVM reads from here what a CPU can do, and QEMU would show this machine's: one that has no more
# than `storage_core.kernels._cpu` counts on.
_CPU: Final = """\
processor\t: 0
Features\t: fp asimd crc32
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd03
CPU revision\t: 4
"""
# Python starts others of its own by the name that it is given, and looks for its library beside it
# unless it is told.
_SCRIPT: Final = """\
#!/bin/sh
export PYTHONHOME='{root}/usr' PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}"
exec '{qemu}' -0 '{python}' -L '{root}' '{root}/usr/bin/python3' "$@"
"""


def main() -> None:
    """Make it anew."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    root, site, python = _FOLDER / "root", _FOLDER / "site", _FOLDER / "bin" / "python"
    _unpack(_fetch_emulator(), _FOLDER / "qemu")
    _unpack(_fetch_libraries(), root)
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(_CPU)
    python.parent.mkdir()
    qemu = _FOLDER / "qemu" / "usr" / "bin" / "qemu-aarch64-static"
    python.write_text(_SCRIPT.format(root=root, site=site, qemu=qemu, python=python))
    python.chmod(0o755)
    _install(python, site)


def _fetch_emulator() -> Iterable[Path]:
    folder = _FOLDER / "packages" / "emulator"
    folder.mkdir(parents=True)
    _run("apt-get", "--quiet=2", "--option", _AS_THIS_USER, "download", _QEMU, folder=folder)
    return folder.glob("*.deb")


def _fetch_libraries() -> Iterable[Path]:
    """Fetch packages of arm64 by an apt with a state of its own, in which nothing is installed."""
    folder = _FOLDER / "packages" / "libraries"
    for name in ("cache/archives/partial", "state/lists/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "apt.conf").write_text(_APT.substitute(folder=folder))
    apt = {"APT_CONFIG": str(folder / "apt.conf")}
    _run("apt-get", "--quiet=2", "update", variables=apt)
    _run("apt-get", "--quiet=2", "--download-only", "install", *_LIBRARIES, variables=apt)
    return (folder / "cache" / "archives").glob("*.deb")


def _unpack(packages: Iterable[Path], folder: Path) -> None:
    for package in packages:
        _run("dpkg-deb", "--extract", str(package), str(folder))


def _install(python: Path, site: Path) -> None:
    """Install what the project depends on, with this machine's pip: it need not be emulated."""
    program = "import os, sys; print(*sys.version_info[:2], os.confstr('CS_GNU_LIBC_VERSION'))"
    asked = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    major, minor, _, libc = asked.stdout.split()
    newest = int(libc.partition(".")[2])
    kinds = ["manylinux2014_aarch64"]
    kinds += [f"manylinux_2_{version}_aarch64" for version in range(17, newest + 1)]
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)),
        *("--only-binary", ":all:", "--python-version", f"{major}.{minor}"),
        *(word for kind in kinds for word in ("--platform", kind)),
        *("--constraint", str(_LOCK), *project["dependencies"], *_TEST_TOOLS),
    )


def _run(
    *command: str, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> None:
    subprocess.run(command, check=True, cwd=folder, env=os.environ | dict(variables or {}))


if __name__ == "__main__":
    main()
