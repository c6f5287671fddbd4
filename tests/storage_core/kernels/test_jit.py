"""Where compiled code is kept: edits are seen, zips share it, and nobody needs a place to write."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import storage_core
from storage_core import local_files
from storage_core.kernels import _code_files, survivors, varint
from storage_core.kernels._code_files import CACHE_VARIABLE, cache_folder
from storage_core.kernels._cpu import Cpu
from storage_core.kernels._jit import kernels_of

PACKAGE = Path(storage_core.__file__).parent
# What the kernels consist of: without the rest a copy is small and imports fast.
KERNEL_SOURCES = (
    *("__init__.py", "errors.py", "redaction.py", "local_files.py", "wording.py"),
    *("formats", "kernels"),
)

PROGRAM = """
import json
import sys
import numpy as np
from storage_core.kernels import survivors, varint
from storage_core.kernels._code_files import cache_folder, source_digest

# Depends on MAX_VARINT_BYTES of formats.record_v2: an encoding of four bytes.
_, next_position = varint.read_varint(np.array([128, 128, 128, 0, 0], np.uint8), 0, 5)
# Depends on ORDINAL_BITS of kernels.offset_table: ordinal 2**16 + 3 of the segment with number 0.
table = np.array([[0, 0, 2**16 + 3 + 1]], np.uint64)
words = np.zeros(2048, np.uint64)
survivors.mark_survivors(table, np.array([0, 1], np.int64), words)
print(json.dumps({
    "next_position": int(next_position),
    "words": np.flatnonzero(words).tolist(),
    "digest": source_digest(),
    "folder": cache_folder() and str(cache_folder()),
    "compiles": "numba" in sys.modules,
    "file": varint.__file__,
}))
"""
RIGHT_ANSWER = {"next_position": 4, "words": [1024]}


def run(path: Path, *, before: str = "", **environment: str) -> dict[str, Any]:
    """Run the program in a new process that imports storage_core from a folder or zip."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {CACHE_VARIABLE, "XDG_CACHE_HOME"} and not name.startswith("NUMBA_")
    }
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM],
        env=kept | {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        # Not the repository: its own storage_core would be found first.
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["file"].startswith(str(path))
    return answer


def answer_of(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in RIGHT_ANSWER}


def copied_sources(into: Path) -> Path:
    """Copy the kernels into a folder that can be put on the path; return that folder."""
    for name in KERNEL_SOURCES:
        source, target = PACKAGE / name, into / "storage_core" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return into


def zipped(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(folder.rglob("*.py")):
            out.write(path, path.relative_to(folder))
    return archive


def edit(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text())
    assert count == 1
    path.write_text(text)


def numba_version() -> bytes:
    return version("numba").encode()


def files_of(folder: Path) -> dict[str, int]:
    """Return the files below a folder and when they were written."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


@dataclass(frozen=True)
class Warm:
    """A cache that was filled by one process, and what that process said."""

    folder: Path
    files: dict[str, int]
    said: dict[str, Any]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    sources = copied_sources(tmp_path_factory.mktemp("first") / "lib")
    folder = tmp_path_factory.mktemp("kept")
    said = run(sources, **{CACHE_VARIABLE: str(folder)})
    return Warm(folder, files_of(folder), said)


def test_compiled_code_is_kept_and_found_again_wherever_the_sources_are(tmp_path, warm):
    assert answer_of(warm.said) == RIGHT_ANSWER
    assert warm.said["compiles"]
    assert warm.files
    again = run(copied_sources(tmp_path / "lib"), **{CACHE_VARIABLE: str(warm.folder)})
    assert answer_of(again) == RIGHT_ANSWER
    assert not again["compiles"]
    assert files_of(warm.folder).items() >= warm.files.items()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "changed"),
    [
        pytest.param(
            "formats/record_v2.py",
            r"(MAX_VARINT_BYTES: Final =) 5",
            r"\1 3",
            {"next_position": -1},
            id="formats",
        ),
        pytest.param(
            "kernels/offset_table.py",
            r"(ORDINAL_BITS: Final =) 32",
            r"\1 16",
            {"words": [1]},
            id="kernels",
        ),
    ],
)
def test_an_edited_constant_in_another_file_is_seen(
    tmp_path, warm, file, pattern, replacement, changed
):
    sources = copied_sources(tmp_path / "lib")
    edit(sources / "storage_core" / file, pattern, replacement)
    found = run(sources, **{CACHE_VARIABLE: str(warm.folder)})
    assert answer_of(found) == RIGHT_ANSWER | changed
    assert found["digest"] != warm.said["digest"]
    assert found["folder"] != warm.said["folder"]
    assert found["compiles"]


@pytest.mark.thorough
def test_two_zips_share_the_compiled_code(tmp_path, warm):
    sources = copied_sources(tmp_path / "lib")
    for application in ("application-1", "application-2"):
        archive = zipped(sources, tmp_path / f"{application}.zip")
        found = run(archive, **{CACHE_VARIABLE: str(warm.folder)})
        assert answer_of(found) == RIGHT_ANSWER
        assert found["digest"] == warm.said["digest"]
        assert not found["compiles"]
    assert files_of(warm.folder).items() >= warm.files.items()
    ours = Path(warm.said["folder"]).name
    assert {name for name in files_of(warm.folder) if name.startswith(ours)} == set(warm.files)


NO_TEMPORARY_FOLDER = """
import tempfile
def nowhere():
    raise FileNotFoundError("No usable temporary directory found")
tempfile.gettempdir = nowhere
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variable", [CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"])
def test_a_read_only_install_works_where_nothing_can_be_written(tmp_path, variable):
    sources = copied_sources(tmp_path / "lib")
    for path in sources.rglob("*"):
        path.chmod(0o555)
    # Even root cannot make a folder below a file.
    blocked = tmp_path / "blocked"
    blocked.touch()
    before = files_of(tmp_path)
    found = run(sources, before=NO_TEMPORARY_FOLDER, **{variable: str(blocked)})
    assert answer_of(found) == RIGHT_ANSWER
    assert found["folder"] is None
    assert files_of(tmp_path) == before


@pytest.mark.thorough
def test_the_temporary_folder_serves_where_there_is_no_home(tmp_path):
    blocked, temporary = tmp_path / "blocked", tmp_path / "temporary"
    blocked.touch()
    temporary.mkdir()
    sources = copied_sources(tmp_path / "lib")
    found = run(sources, HOME=str(blocked), TMPDIR=str(temporary))
    assert answer_of(found) == RIGHT_ANSWER
    assert Path(found["folder"]).is_relative_to(temporary)
    assert files_of(Path(found["folder"]))


def test_the_temporary_folder_is_left_alone_where_there_is_a_home(tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_code_files.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_folder.__wrapped__().is_relative_to(tmp_path / "cache" / "pylog" / "kernels")
    assert not (tmp_path / "temporary").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720], ids=oct)
def test_a_folder_that_others_may_write_is_refused(tmp_path, monkeypatch, mode):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = cache_folder.__wrapped__()
    assert folder.parent == tmp_path
    folder.chmod(mode)
    assert cache_folder.__wrapped__() is None
    folder.chmod(0o755)
    assert cache_folder.__wrapped__() == folder


def test_a_folder_that_others_can_replace_is_refused(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "ours").mkdir(parents=True)
    monkeypatch.setenv(CACHE_VARIABLE, str(shared / "ours"))
    shared.chmod(0o777)
    assert cache_folder.__wrapped__() is None
    # With the sticky bit only its owner renames a folder, as in /tmp.
    shared.chmod(0o1777)
    folder = cache_folder.__wrapped__()
    assert folder.parent == shared / "ours"


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder.__wrapped__() is not None
    someone = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    monkeypatch.setattr(local_files, "ROOT_USER", someone)
    assert cache_folder.__wrapped__() is None


def test_a_predictable_name_in_the_temporary_folder_is_refused_if_others_may_write_there(
    tmp_path, monkeypatch
):
    blocked = tmp_path / "blocked"
    blocked.touch()
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(_code_files.tempfile, "gettempdir", lambda: str(tmp_path))
    root = tmp_path / f"pylog-kernels-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    assert cache_folder.__wrapped__() is None
    root.chmod(0o700)
    assert cache_folder.__wrapped__().parent == root


def test_the_digest_covers_every_source(monkeypatch):
    digest = _code_files.source_digest.__wrapped__
    plain = digest()
    assert digest() == plain
    read = _code_files.pkgutil.get_data
    names = [
        (package, path.name)
        for package in ("formats", "kernels")
        for path in (PACKAGE / package).glob("*.py")
        if path.name != "__init__.py"
    ]
    assert len(names) > 15
    for package, name in names:

        def one_more_byte(package_name: str, file: str, here=(package, name)) -> bytes:
            data = read(package_name, file)
            is_here = (package_name.rpartition(".")[2], file) == here
            return data + b"#" if is_here else data

        with monkeypatch.context() as patch:
            patch.setattr(_code_files.pkgutil, "get_data", one_more_byte)
            assert digest() != plain, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_BOUNDSCHECK", "1"),
        ("NUMBA_CPU_NAME", "generic"),
        ("NUMBA_CPU_FEATURES", "+sse2"),
        ("NUMBA_OPT", "0"),
    ],
)
def test_other_settings_of_numba_have_a_folder_of_their_own(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    plain = cache_folder.__wrapped__()
    assert cache_folder.__wrapped__() == plain
    monkeypatch.setenv(name, value)
    assert cache_folder.__wrapped__() != plain


@pytest.mark.parametrize("name", ["host_cpu", "_numba_version"])
def test_another_cpu_and_another_numba_have_a_folder_of_their_own(tmp_path, monkeypatch, name):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    plain = cache_folder.__wrapped__()
    assert b'"version": "' + numba_version() in _code_files._numba_version()
    if name == "host_cpu":
        other = Cpu(name="other", features=frozenset())
        monkeypatch.setattr(_code_files, "target_cpu", lambda: other)
    else:
        monkeypatch.setattr(_code_files, name, lambda: b"0.0.0")
    assert cache_folder.__wrapped__() != plain


def test_the_kernels_of_a_module_are_those_that_it_defines():
    assert kernels_of("storage_core.kernels.survivors").keys() == {
        "mark_ordinals",
        "mark_survivors",
        "pick_hashes",
        "is_set",
        "count_range",
        "count_ranges",
    }
    assert kernels_of(varint.__name__)["read_varint"] is varint.read_varint
    assert kernels_of(survivors.__name__)["is_set"] is survivors.is_set
