"""The variables of the caller that reach a test, and the waiting that a failure does not cause."""

import os
import subprocess
import sys
import time

import pytest

from tests.kit.environment import settled_environment

ODD = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONHASHSEED": "7",
    "PYTHONPATH": "/nonexistent",
    "LANG": "tr_TR.UTF-8",
    "LC_ALL": "C",
    "TZ": "Pacific/Chatham",
    "TERM": "dumb",
    "COLUMNS": "20",
    "FORCE_COLOR": "1",
    "NO_COLOR": "1",
    "JAVA_TOOL_OPTIONS": "-Dodd=1",
    "AWS_ACCESS_KEY_ID": "odd",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "SPARK_HOME": "/nonexistent",
    "XDG_CACHE_HOME": "/nonexistent",
    "NUMBA_DISABLE_JIT": "1",
    "MAKEFLAGS": "-n",
    "http_proxy": "http://127.0.0.1:1",
}


def test_nothing_odd_of_the_caller_reaches_a_test():
    settled = settled_environment(ODD)
    kept = {name for name in ODD if settled.get(name) == ODD[name]}
    # A proxy serves what fetches packages; servers of tests are on loopback.
    assert kept == {"http_proxy"}
    assert settled["no_proxy"] == settled["NO_PROXY"] == "127.0.0.1,localhost,::1"


def test_this_process_has_the_settled_environment():
    assert set(os.environ).isdisjoint(ODD.keys() - settled_environment(ODD).keys())
    assert os.environ["TZ"] == "UTC"


@pytest.mark.parametrize("home", ["", "relative", "/nonexistent", "/proc"])
def test_a_home_without_room_for_files_is_not_taken(home):
    assert settled_environment({"HOME": home})["HOME"].endswith("/.cache/home")


def test_a_usable_home_and_temporary_folder_are_kept():
    settled = settled_environment({"HOME": "/tmp", "TMPDIR": "/tmp"})  # noqa: S108
    assert (settled["HOME"], settled["TMPDIR"]) == ("/tmp", "/tmp")  # noqa: S108


@pytest.mark.parametrize("name", ["with space", "ümlaut", "x" * 60])
def test_a_temporary_folder_that_programs_stumble_over_is_not_taken(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    assert "TMPDIR" not in settled_environment({"TMPDIR": str(folder)})


def test_a_process_of_a_failed_block_is_not_waited_for():
    began = time.monotonic()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(AssertionError, match="planted"), subprocess.Popen(command):
        raise AssertionError("planted")
    assert time.monotonic() - began < 60
