"""Every table of every command, at 80, 120 and 200 columns: nothing in it is wider than that.

What is kept is in ``golden/tables``, and the pictures of a terminal in ``docs/pictures``. After a
change: ``PYLOG_KEEP_TABLES=1 pytest`` with this file, then read the difference.
"""

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

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
THE_RUN: Final = "20260102T030405Z-0a1b2c3d"
# Sentences with how long it took: where they break depends on that.
_TIMED: Final = re.compile(r"^(?:run \d{8}T|dry run, |That takes it ).*(?:\n  .*)+", re.MULTILINE)
# Of this machine or this moment.
_VARYING: Final = (
    (_RUN, THE_RUN),
    (re.compile(r"(in|about) \d+\.\d s"), r"\1 0.0 s"),
    (re.compile(r", [\d.]+ [KMG]?i?B(ytes)?/s"), ", 1.0 MiB/s"),
    (re.compile(r"with \d+ tasks \(.*\)"), "with 2 tasks (1.0 MiB/s a reader, as measured)"),
)

BROKER: Final = f"{{}}/log --role broker --now-ms {CLOSED_MS} --engine local"
COMMANDS: Final = {
    "inspect": "inspect {}/log",
    "inspect-segments": "inspect {}/log --segments --topics clickstream",
    "inspect-two-roots": "inspect {}/log {}/unclean --by age",
    "groups": f"groups {{}}/unclean --now-ms {UNCLEAN_MS}",
    "transactions": f"transactions {{}}/unclean --now-ms {UNCLEAN_MS}",
    "inspect-unclean": "inspect {}/unclean --by dirty",
    "inspect-topics": "inspect {}/log {}/unclean --per-topic --by size",
    "explain": f"explain {{}}/log --topics clickstream --now-ms {CLOSED_MS}",
    "explain-unclean": f"explain {{}}/unclean --topics compacted --now-ms {UNCLEAN_MS}",
    "explain-unknown": f"explain {{}}/copy --now-ms {UNCLEAN_MS}",
    "survey": f"survey {{}}/log {{}}/copy --now-ms {CLOSED_MS} --engine local",
    "verify": f"verify {{}}/torn --deep --now-ms {UNCLEAN_MS} --engine local",
    "doctor": f"doctor {{}}/torn --now-ms {UNCLEAN_MS} --engine local",
    "run": f"run {BROKER} --dry-run",
    "retain": f"retain {BROKER} --dry-run",
    "compact": f"compact {BROKER} --dry-run",
    "recover": f"recover {{}}/torn --role broker --now-ms {UNCLEAN_MS} --dry-run --engine local",
    "ingest": "ingest {}/log {}/new --sync-stopped --settle 1s --dry-run --engine local",
    "materialize": "materialize {}/managed {}/plain --dry-run --engine local",
    "apply": "apply {}/plan.json --dry-run --engine local",
    "undo": f"undo {THE_RUN} --trash {{}}/trash --dry-run",
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
    _rename_run(made / "trash")
    pylog(
        "compact", *f"{BROKER} --dry-run --plan-out {{}}/plan.json".replace("{}", str(made)).split()
    )
    managed = f"{made}/log {made}/managed --sync-stopped --settle 0s --engine local"
    pylog("ingest", *managed.split(), "--topics", "clickstream")
    yield made
    shutil.rmtree(made)


def _rename_run(trash: Path) -> None:
    """Let the only run of a trash have another name, and have begun at that time."""
    (run,) = (path for path in trash.iterdir() if _RUN.fullmatch(path.name))
    for path in run.rglob("*.json"):
        told = path.read_text().replace(run.name, THE_RUN)
        path.write_text(re.sub(r'("started_ms": ?)\d+', r"\g<1>1767323045000", told))
    run.rename(trash / THE_RUN)


def table_text(pylog, monkeypatch, folder: Path, name: str, width: int) -> str:
    """Return what a command prints on a terminal so wide, without what differs every time."""
    columns = (
        replace(one, cell=lambda _: "7") if one.heading == "ms" else one
        for one in jobs.RESULT_TABLE.columns
    )
    monkeypatch.setattr(jobs, "RESULT_TABLE", replace(jobs.RESULT_TABLE, columns=tuple(columns)))
    monkeypatch.setenv("COLUMNS", str(width))
    result = pylog(*COMMANDS[name].replace("{}", str(folder)).split())
    assert result.exit_code in {0, 1, 3}, result.stderr
    # A terminal that shows colours is shown the progress, too.
    assert result.stderr == "" or "FORCE_COLOR" in os.environ
    # A line that has a command to be copied is left to the terminal to break.
    lines = Text.from_ansi(result.stdout).plain.splitlines()
    wide = [line for line in lines if len(line) > width]
    assert [line for line in wide if not re.search(r"`|--|pylog |^  [A-Z_]+: ", line)] == []
    text = result.stdout.replace(str(folder), "/tmp/pylog-folder0")  # noqa: S108  # as long as the real one
    text = _TIMED.sub(lambda match: match[0].replace("\n  ", " "), text)
    for pattern, said in _VARYING:
        text = pattern.sub(said, text)
    return text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_fits_the_terminal_and_is_what_was_kept(
    pylog, monkeypatch, folder, name: str, width: int
):
    text = table_text(pylog, monkeypatch, folder, name, width)
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


# What the documents show of a terminal: the command as a person would type it, and its columns.
TERMINALS: Final = {
    "inspect": ("inspect {}/log --by size", 96),
    "doctor": (f"doctor {{}}/torn --now-ms {UNCLEAN_MS} --engine local", 96),
    "run": (f"run {BROKER} --dry-run", 110),
}
# A picture fetches no font; where there is none of these, another one of fixed width serves.
PLAIN_SVG: Final = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TERMINALS)
def test_the_documents_show_what_a_terminal_shows(pylog, monkeypatch, folder, name: str):
    command, width = TERMINALS[name]
    monkeypatch.setitem(COMMANDS, name, command)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = table_text(pylog, monkeypatch, folder, name, width)
    text = re.sub(r"/tmp/pylog-folder0/(log|torn)", "/var/lib/kafka", text)  # noqa: S108  # as above
    assert "\x1b[" in text
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi(text))
    typed = re.sub(r" (--now-ms \d+|--engine local)", "", command)
    typed = re.sub(r"\{\}/\w+", "/var/lib/kafka", typed)
    picture = console.export_svg(
        title=f"pylog {typed}", code_format=PLAIN_SVG, unique_id=f"pylog-{name}"
    )
    kept = GOLDEN.parents[1] / "docs" / "pictures" / f"terminal-{name}.svg"
    if IS_KEPT_ANEW:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(picture)
    assert picture == kept.read_text()
    # The format's name, and in a comment that of the package.
    places = set(re.findall(r"\w+://[\w./-]+", picture))
    assert places <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
