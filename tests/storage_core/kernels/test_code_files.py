"""The files of machine code: damage in them, several processes at once, and what a wheel brings."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from storage_core.kernels import _code_files
from storage_core.kernels._code_files import CACHE_VARIABLE, cache_folder, keep_code, read_code
from storage_core.kernels._cpu import Cpu
from tests.storage_core.kernels.test_jit import RIGHT_ANSWER, answer_of, copied_sources, run

ROOT = Path(__file__).parents[3]
NOWHERE = "/dev/null/nowhere"  # no folder can be made there
LOGGED = "import logging; logging.basicConfig(level=logging.DEBUG)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of the test's own, of which this process knows."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    found = cache_folder.__wrapped__()
    monkeypatch.setattr(_code_files, "cache_folder", lambda: found)
    monkeypatch.setattr(_code_files, "layer_folder", lambda: None)
    return found


def test_code_is_found_as_it_was_kept(folder):
    assert read_code("module.name") == {}
    keep_code("module.name", "module.name.1", b"one\n")
    keep_code("module.name", "module.name.2", b"")
    keep_code("module.name", "module.name.1", b"other")
    assert read_code("module.name") == {"module.name.1": b"other", "module.name.2": b""}
    assert [path.name for path in folder.iterdir()] == ["module.name.bin"]


def test_every_flipped_or_missing_byte_is_seen(folder, caplog):
    keep_code("module.name", "module.name.1", b"code of the first")
    keep_code("module.name", "module.name.2", b"code of the second")
    file = folder / "module.name.bin"
    whole, entries = file.read_bytes(), read_code("module.name")
    for position in range(len(whole)):
        file.write_bytes(whole[:position])
        assert read_code("module.name").items() <= entries.items()
        changed = bytearray(whole)
        changed[position] ^= 1
        file.write_bytes(changed)
        # A name that is no longer right leads nowhere: LLVM is asked for what the kernel is called.
        assert set(read_code("module.name").values()) <= set(entries.values())
    assert f"{file}: position 0: " in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"x" * 2_000, b"pylog machine code 1 a -5 00\n", b"pylog machine code 2 a 0 0\n"],
)
def test_other_content_is_no_code(folder, content):
    (folder / "module.name.bin").write_bytes(content)
    assert read_code("module.name") == {}


def swap_folder(folder: Path) -> None:
    """Put another folder in the place of one: with the same code, and open to others."""
    folder.rename(folder.with_name("ours"))
    shutil.copytree(folder.with_name("ours"), folder)
    folder.chmod(0o777)


def link_folder(folder: Path) -> None:
    folder.rename(folder.with_name("ours"))
    folder.symlink_to("ours")


def link_file(folder: Path) -> None:
    (folder / "module.name.bin").rename(folder / "other")
    (folder / "module.name.bin").symlink_to("other")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(lambda folder: (folder / "module.name.bin").chmod(0o666), id="a public file"),
        pytest.param(
            lambda folder: os.chown(folder / "module.name.bin", 12345, -1),
            id="a file of another user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="files are given away by root"),
        ),
        pytest.param(link_file, id="a link"),
        pytest.param(swap_folder, id="another folder"),
        pytest.param(link_folder, id="a folder that is a link"),
    ],
)
def test_code_that_somebody_else_may_have_put_there_is_not_run(folder, attack):
    keep_code("module.name", "module.name.1", b"code")
    attack(folder)
    assert read_code("module.name") == {}


def test_a_lock_that_is_a_link_empties_nobodys_file(folder, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (folder / "module.name.lock").symlink_to(tmp_path / "precious")
    with _code_files.only_here("module.name"):
        assert (tmp_path / "precious").read_text() == "precious"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that a process has filled; where the sources lie makes no difference."""
    kept = tmp_path_factory.mktemp("kept")
    run(copied_sources(tmp_path_factory.mktemp("of") / "lib"), **{CACHE_VARIABLE: str(kept)})
    return kept


@pytest.mark.thorough
def test_damaged_code_is_compiled_again(compiled, tmp_path):
    sources, kept = copied_sources(tmp_path / "lib"), tmp_path / "kept"
    shutil.copytree(compiled, kept)
    for file in kept.rglob("*.bin"):
        data = bytearray(file.read_bytes())
        data[-20] ^= 0xFF
        file.write_bytes(data)
    again = run(sources, **{CACHE_VARIABLE: str(kept)})
    assert answer_of(again) == RIGHT_ANSWER
    assert again["compiles"]
    assert not run(sources, **{CACHE_VARIABLE: str(kept)})["compiles"]


@pytest.mark.thorough
def test_processes_of_a_host_compile_a_kernel_once(tmp_path):
    sources = copied_sources(tmp_path / "lib")
    program = LOGGED + (
        "import numpy as np; from storage_core.kernels import survivors\n"
        "survivors.mark_ordinals(np.zeros(1, np.uint32), 0, np.zeros(1, np.uint64))"
    )
    environment = os.environ | {CACHE_VARIABLE: str(tmp_path / "kept"), "PYTHONPATH": str(sources)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    logs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(log.count("compiling survivors.mark_ordinals") for log in logs) == 1


def test_a_process_that_hangs_holds_nobody_up_for_ever(folder, monkeypatch):
    monkeypatch.setattr(_code_files, "_LONGEST_WAIT_SECONDS", 0.1)
    with _code_files.only_here("module.name"), _code_files.only_here("module.name"):
        pass


@pytest.fixture
def with_layer(compiled: Path, tmp_path: Path) -> Path:
    """Sources as a wheel has them, with code that is ready for this machine."""
    sources = copied_sources(tmp_path / "lib")
    layer = sources / "storage_core" / _code_files.layer_name()
    layer.mkdir(parents=True)
    for file in compiled.rglob("*.bin"):
        shutil.copy(file, layer)
    return sources


IS_COMMON = pytest.mark.skipif(
    _code_files.common_cpu() is None
    or bool(_code_files.common_cpu().features - _code_files.host_cpu().features),
    reason="wheels have no code for this machine",
)


@IS_COMMON
def test_the_code_in_a_wheel_is_taken(with_layer):
    found = run(with_layer, **{CACHE_VARIABLE: NOWHERE})
    assert answer_of(found) == RIGHT_ANSWER
    assert not found["compiles"]
    assert found["folder"] is None


@pytest.mark.sampled(1)
@IS_COMMON
@pytest.mark.parametrize("why", ["other sources", "other settings", "damage", "another CPU"])
def test_code_in_a_wheel_that_is_not_for_here_is_left(with_layer, why):
    sources = with_layer
    before, environment = "", {CACHE_VARIABLE: NOWHERE}
    if why == "other sources":
        with (sources / "storage_core" / "kernels" / "varint.py").open("a") as file:
            file.write("\n# edited\n")
    elif why == "other settings":
        environment["NUMBA_OPT"] = "1"
    elif why == "damage":
        for path in sources.rglob("*.bin"):
            data = bytearray(path.read_bytes())
            data[-20] ^= 0xFF
            path.write_bytes(data)
    else:
        before = (
            "import llvmlite.binding as llvm; real = llvm.get_host_cpu_features()\n"
            "real |= {'avx2': False, 'crc': False}; llvm.get_host_cpu_features = lambda: real\n"
        )
    found = run(sources, before=before, **environment)
    assert answer_of(found) == RIGHT_ANSWER
    assert found["compiles"]


def test_what_a_cpu_lacks_is_said(monkeypatch, caplog):
    monkeypatch.setattr(_code_files, "common_cpu", lambda: cpu("v3", "avx", "avx2", "fma"))
    monkeypatch.setattr(_code_files, "host_cpu", lambda: cpu("old", "avx"))
    for name in _code_files._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level("DEBUG"):
        assert _code_files.layer_folder.__wrapped__() is None
    assert "this CPU is no v3, it lacks avx2, fma" in caplog.text


def cpu(name: str, *features: str) -> Cpu:
    return Cpu(name=name, features=frozenset(features))


def test_the_wheel_takes_the_folder_of_ready_made_code_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (folder,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["artifacts"]
    assert f"storage_core/{_code_files.layer_name()}".startswith(folder.removeprefix("/") + "/")
    # Of the source archive, which has none, make builds no wheel.
    builds = [line for line in (ROOT / "Makefile").read_text().splitlines() if "uv build" in line]
    assert builds
    assert all(" --wheel" in line for line in builds)
