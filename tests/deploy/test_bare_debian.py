"""Debian's unstable with its own Python and nothing else, in a folder: what a new machine has.

``make python314``. Making it needs root, debootstrap and Debian's packages; PYLOG_DEBIAN says where
it lies, and one that is there is taken. Other distributions' releases by PYLOG_DEBIAN_SUITE.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.jobs.spark_programs import REPOSITORY

pytestmark = pytest.mark.deploy

SUITE = os.environ.get("PYLOG_DEBIAN_SUITE", "sid")
PACKAGES = "python3,python3-venv,make,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SOURCES = "src"
BROKER = "var/lib/kafka"
# What depends on the Python there is: how it calls machine code, its processes, every command.
TESTS = (
    "tests/storage_core/kernels/test_entries.py",
    "tests/storage_core/kernels/test_jit.py",
    "tests/storage_core/records",
    "tests/storage_core/log",
    "tests/pylog_spark/test_answers.py",
    "tests/cluster/operations/test_engines.py",
)


@pytest.fixture(scope="module")
def root() -> Path:
    """The root of the system, with a fresh copy of the repository."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root is made by debootstrap, as root")
    place = os.environ.get("PYLOG_DEBIAN", REPOSITORY / "build" / f"debian-{SUITE}")
    root = Path(place).absolute()
    if not (root / "usr" / "bin" / "python3").exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, MIRROR]
        subprocess.run(command, check=True)
    # What this machine trusts, and how it looks up names.
    for file in (CERTIFICATES, Path("/etc/resolv.conf")):
        if file.exists():
            shutil.copyfile(file, root / file.relative_to("/"))
    for folder in (SOURCES, BROKER):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = root / SOURCES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target)
    return root


def run(root: Path, program: str) -> str:
    """Run a program of the shell in the root, with its own mounts; return what it prints."""
    mounts = (
        f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && "
        f"exec chroot {root} sh -exc {shlex.quote(program)}"
    )
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", mounts],
        env=kept | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def readme_commands() -> list[str]:
    """Return the commands of README that a person types who installs it by pip and looks."""
    readme = (REPOSITORY / "README.md").read_text()
    outside = re.sub(r"^```.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^    (\S.*?)(?:  +#.*)?$", outside, re.MULTILINE)
    pylog = [line for line in lines if line.startswith("pylog ") and "/var/lib/kafka" in line]
    install = [line for line in lines if line.startswith(("python3 -m venv", "pip install ."))]
    warm_up = [line for line in lines if line.startswith("pylog warmup")]
    assert (len(pylog), len(install), len(warm_up)) == (2, 2, 1)
    return [*install, *warm_up, *pylog]


@pytest.mark.timeout(3600)
def test_its_python_is_one_that_is_supported(root):
    version = run(root, "python3 -c 'import sys; print(sys.version_info[:2])'")
    if SUITE == "sid":
        assert version.strip() >= "(3, 14)"


@pytest.mark.timeout(3600)
def test_the_commands_of_the_readme(root):
    archive = REPOSITORY / "tests" / "golden" / "broker-uncleaned" / "before.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "-C", root / BROKER], check=True)
    said = run(root, "\n".join([f"cd /{SOURCES}", *readme_commands()]))
    assert "/var/lib/kafka: looks like broker, cleanly shut down" in said
    assert re.search(r"^dry run, nothing was written: 13 planned, 2 skipped", said, re.MULTILINE), (
        said
    )
    # A folder without a mount of its own, as here, is changed, too.
    said = run(
        root,
        f"cd /{SOURCES}; . .venv/bin/activate; "
        "pylog run /var/lib/kafka --role broker --engine local",
    )
    assert "13 done" in said, said


@pytest.mark.timeout(3600)
def test_make_run(root):
    run(root, f"cd /{SOURCES} && make run")
    assert (root / SOURCES / "build" / "ledger" / "runs" / "_delta_log").is_dir()


@pytest.mark.timeout(7200)
def test_the_tests_that_depend_on_a_python(root):
    program = f"cd /{SOURCES}; make .venv/.for-all; .venv/bin/python -m pytest -q {' '.join(TESTS)}"
    assert re.search(r"^\d+ passed|\b\d+ passed in ", run(root, program), re.MULTILINE)
