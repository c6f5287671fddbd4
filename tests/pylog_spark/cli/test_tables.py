"""Every table of every command, at 80, 120 and 200 columns: nothing in it is wider than that.

What is kept is in ``golden/tables``. After a change: ``PYLOG_KEEP_TABLES=1 pytest`` with this file,
then read the difference.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pylog_spark.cli import jobs
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.golden_data import GOLDEN, Golden

TABLES: Final = GOLDEN / "tables"
IS_KEPT_ANEW: Final = "PYLOG_KEEP_TABLES" in os.environ
WIDTHS: Final = (80, 120, 200)
HOUR_MS: Final = 3_600_000
CLOSED_MS: Final = int(broker_origin()["clock_ms"]) + HOUR_MS
UNCLEAN: Final = Golden("broker-dir-unclean")
UNCLEAN_MS: Final = int(UNCLEAN.case["clock_ms"]) + HOUR_MS

_RUN: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
# Of this machine or this moment.
_VARYING: Final = (
    (_RUN, "20260102T030405Z-0a1b2c3d"),
    (re.compile(r"(in|about) \d+\.\d s"), r"\1 0.0 s"),
    (re.compile(r", [\d.]+ [KMG]?i?B(ytes)?/s"), ", 1.0 MiB/s"),
    (re.compile(r"with \d+ tasks \(.*\)"), "with 2 tasks (1.0 MiB/s a reader, as measured)"),
)

BROKER: Final = f"{{}}/log --role broker --now-ms {CLOSED_MS} --engine local"
COMMANDS: Final = {
    "inspect": "inspect {}/log",
    "inspect-segments": "inspect {}/log --segments --topics clickstream",
    "inspect-two-roots": "inspect {}/log {}/unclean --by age",
    "inspect-unclean": "inspect {}/unclean --by dirty",
    "inspect-topics": "inspect {}/log {}/unclean --per-topic --by size",
    "explain": f"explain {{}}/log --topics clickstream --now-ms {CLOSED_MS}",
    "explain-unclean": f"explain {{}}/unclean --topics compacted --now-ms {UNCLEAN_MS}",
    "explain-unknown": f"explain {{}}/copy --now-ms {UNCLEAN_MS}",
    "survey": f"survey {{}}/log {{}}/copy --now-ms {CLOSED_MS}",
    "verify": f"verify {{}}/torn --deep --now-ms {UNCLEAN_MS}",
    "doctor": f"doctor {{}}/torn --now-ms {UNCLEAN_MS}",
    "run": f"run {BROKER} --dry-run",
    "retain": f"retain {BROKER} --dry-run",
    "compact": f"compact {BROKER} --dry-run",
    "recover": f"recover {{}}/torn --role broker --now-ms {UNCLEAN_MS} --dry-run --engine local",
    "ingest": "ingest {}/log {}/managed --sync-stopped --settle 1s --dry-run --engine local",
    "undo": "undo RUN --trash {}/trash --dry-run",
    "purge": "purge --trash {}/trash --older-than 0s --dry-run",
    "config-show": "config show --origin",
    "runs": "runs --trash {}/trash",
    "find": "find {}/done --topic clickstream --key 2a5070b2cfb4d1f8 --trash {}/trash",
    "free": f"free {{}}/log --need 10MiB --now-ms {CLOSED_MS} --engine local",
}


@pytest.fixture(scope="module")
def folder(pylog) -> Iterator[Path]:
    """Log directories at a path that is as long on every machine: lines break at the same words."""
    made = Path(tempfile.mkdtemp(prefix="pylog-", dir="/tmp"))
    unpack_broker(made / "log")
    UNCLEAN.unpack(made).rename(made / "unclean")
    shutil.copytree(made / "unclean", made / "torn")
    log = max((made / "torn" / "events-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-100])
    shutil.copytree(made / "unclean", made / "copy")
    shutil.rmtree(made / "copy" / "__cluster_metadata-0")
    (made / "copy" / "meta.properties").unlink()
    shutil.copytree(made / "log", made / "done")
    done = f"{made}/done --role broker --now-ms {CLOSED_MS} --engine local --trash {made}/trash"
    pylog("retain", *done.split(), "--topics", "clickstream")
    yield made
    shutil.rmtree(made)


def table_text(pylog, monkeypatch, folder: Path, name: str, width: int) -> str:
    """Return what a command prints on a terminal so wide, without what differs every time."""
    columns = (
        replace(one, cell=lambda _: "7") if one.heading == "ms" else one
        for one in jobs.RESULT_TABLE.columns
    )
    monkeypatch.setattr(jobs, "RESULT_TABLE", replace(jobs.RESULT_TABLE, columns=tuple(columns)))
    monkeypatch.setenv("COLUMNS", str(width))
    runs = [path.name for path in (folder / "trash").iterdir() if _RUN.fullmatch(path.name)]
    words = COMMANDS[name].replace("{}", str(folder)).replace("RUN", "".join(runs)).split()
    result = pylog(*words)
    assert result.exit_code in {0, 1, 3}, result.stderr
    assert result.stderr == ""
    text = result.stdout.replace(str(folder), "/tmp/pylog-folder0")  # noqa: S108  # as long as the real one
    for pattern, said in _VARYING:
        text = pattern.sub(said, text)
    return text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_fits_the_terminal_and_is_what_was_kept(
    pylog, monkeypatch, folder, name: str, width: int
):
    text = table_text(pylog, monkeypatch, folder, name, width)
    # A line that has a command to be copied is left to the terminal to break.
    wide = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in wide if not re.search(r"`|--|pylog |^  [A-Z_]+: ", line)] == []
    kept = TABLES / f"{name}-{width}.txt"
    if IS_KEPT_ANEW:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text)
    assert text == kept.read_text()


def test_a_wide_table_leaves_nothing_out(pylog, monkeypatch, folder):
    monkeypatch.setenv("COLUMNS", "80")
    narrow = pylog("inspect", folder / "log")
    wide = pylog("inspect", folder / "log", "--wide")
    assert "not in 80 columns" in narrow.stdout
    assert "not in" not in wide.stdout
    heading = wide.stdout.splitlines()[1]
    for name in ("start", "end", "stable", "cleaned to", "to recover"):
        assert name in heading
