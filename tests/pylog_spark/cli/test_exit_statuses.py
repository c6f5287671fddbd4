"""Exit statuses of all commands that look: the rule of the table in ``docs/exit-statuses.md``."""

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from pylog_spark.cli.commands import COMMANDS
from pylog_spark.exit_code import ExitCode, exit_code_of, is_failed_look
from storage_core.errors import CorruptRecordError, InvalidNameError, located
from tests.kit.golden_data import Golden

_NOW: Final = ("--now-ms", 2 * 10**12)
_ENGINE: Final = (*_NOW, "--engine", "local")
# By command: how it looks at a log directory.
_LOOKS: Final = {
    "inspect": ("inspect", "{}"),
    "dump": ("dump", "{}/events-0"),
    "cat": ("cat", "events", "--root", "{}"),
    "export": ("export", "events", "{}-out", "--root", "{}", "--to", "csv"),
    "find": ("find", "{}", "--topic", "events", "--key", "k"),
    "sql": ("sql", "{}", "SELECT count(value) FROM events"),
    "free": ("free", "{}", *_ENGINE),
    "groups": ("groups", "{}", *_NOW),
    "transactions": ("transactions", "{}", *_NOW),
    "explain": ("explain", "{}", *_NOW),
    "survey": ("survey", "{}", *_ENGINE),
    "verify": ("verify", "{}", *_ENGINE),
    "doctor": ("doctor", "{}", *_ENGINE),
    "audit": ("audit", "{}", *_ENGINE),
    "differences": ("differences", "{}", "--engine", "local"),
    "copies": ("copies", "{}", "--copy", "{}-copy", "--engine", "local"),
    "timeline": ("timeline", "{}"),
    "metadata": ("metadata", "show", "{}"),
    "config init": ("config", "init", "{}"),
}
_WHOLE: Final = frozenset({ExitCode.DONE, ExitCode.FINDINGS})
# What reads records may meet bytes that are none.
_READERS: Final = frozenset({"dump", "cat", "export", "find", "sql"})


def _first(directory: Path, suffix: str) -> Path:
    return min(directory.glob(f"*{suffix}"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with much that is odd, and nothing that keeps a broker from opening it."""
    root = Golden("broker-dir-unclean").unpack(tmp_path_factory.mktemp("opened"))
    _first(root / "events-0", ".index").unlink()
    max((root / "events-1").glob("*.index")).unlink()
    _first(root / "payments.txn-0", ".timeindex").unlink()
    (root / "fresh-0").mkdir()
    (root / "events-0" / "notes.txt").write_bytes(b"not Kafka's")
    last = max((root / "events-1").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-7])
    shutil.copytree(root, f"{root}-copy")
    return root


@pytest.fixture(scope="module")
def not_opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one file name with which Kafka does not load the log."""
    root = Golden("broker-dir").unpack(tmp_path_factory.mktemp("not-opened"))
    (root / "events-0" / "x.log.swap").write_bytes(b"")
    shutil.copytree(root, f"{root}-copy")
    return root


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", _LOOKS)
def test_a_directory_that_kafka_opens_is_looked_at(pylog, opened: Path, command: str):
    result = pylog(*(str(word).format(opened) for word in _LOOKS[command]))
    assert result.exit_code in _WHOLE, (result.stdout, result.stderr)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", _LOOKS)
def test_a_name_of_somebody_else_is_no_wrong_usage(pylog, not_opened: Path, command: str):
    result = pylog(*(str(word).format(not_opened) for word in _LOOKS[command]))
    assert result.exit_code in _WHOLE | {ExitCode.PARTLY_FAILED}, result.stderr
    if command in _READERS:
        assert result.exit_code == ExitCode.PARTLY_FAILED
        assert "x.log.swap" in result.stdout + result.stderr


def test_every_command_that_looks_has_its_row_and_is_tried():
    looks = {each.name for each in COMMANDS if (each.panel or "").startswith("Look")}
    page = Path("docs/exit-statuses.md").read_text("utf-8")
    table = page.partition("## Commands that look")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?: init)?)(?: show)?`", table))
    assert looks <= named | {"salvage"}
    assert set(_LOOKS) <= named
    assert looks <= {*_LOOKS, "salvage", "scrub"}  # a tier is no log directory


def test_the_class_of_an_error_says_whether_a_look_failed():
    assert not is_failed_look(None)
    assert not is_failed_look("RecoveryRequiredError")
    assert is_failed_look(CorruptRecordError.__name__)


def test_a_name_that_somebody_typed_is_wrong_usage_and_one_of_a_file_is_not():
    @located
    def read(_directory: str) -> None:
        raise InvalidNameError("x.log.swap", "is no name")

    with pytest.raises(InvalidNameError) as of_file:
        read("/logs/orders-0")
    assert exit_code_of(of_file.value) == ExitCode.PARTLY_FAILED
    assert exit_code_of(InvalidNameError("a b", "is no topic")) == ExitCode.USAGE
