"""Below the table of a command stands the way out of each reason, once."""

from pathlib import Path
from typing import Any

import pytest

from pylog_spark.outcomes import Reason
from pylog_spark.refusals import REASONS
from tests.kit.golden_data import Golden
from tests.kit.start_accidents import STRAY

NOW = ("--now-ms", 2 * 10**12, "--engine", "local")
TAKEN = ("--sync-stopped", "--settle", "0s", "--engine", "local")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Golden("broker-dir").unpack(tmp_path)


def ways(result: Any) -> list[str]:
    """Return the lines of ways out, without their counts of partitions."""
    lines = " ".join(result.stdout.split())
    return [reason for reason in Reason if f"{reason} (" in lines and REASONS[reason].way in lines]


def test_survey(pylog: Any, log: Path):
    (log / "events-0").rename(log / f"events-0{STRAY}")
    assert ways(pylog("survey", log, *NOW)) == [Reason.STRAY_DIRECTORY]


@pytest.mark.thorough
def test_ingest(pylog: Any, log: Path, tmp_path: Path):
    logs = sorted((log / "events-0").glob("*.log"))
    logs[0].write_bytes(logs[0].read_bytes() + logs[1].read_bytes())
    for index in (log / "events-0").glob("*.index"):
        index.unlink()
    result = pylog("ingest", log, tmp_path / "managed", *TAKEN)
    assert ways(result) == [Reason.OVERLAPPING_SEGMENTS]


@pytest.mark.thorough
def test_materialize(pylog: Any, log: Path, tmp_path: Path):
    managed, plain = tmp_path / "managed", tmp_path / "plain"
    assert pylog("ingest", log, managed, *TAKEN, "--topics", "events").exit_code == 0
    assert pylog("materialize", managed, plain, "--engine", "local").exit_code == 0
    less = ("--set", "retention.ms=1", "--max-delete-ratio", 1, "--assume-defaults", "events")
    pylog.done(
        *("retain", managed, "--role", "managed", *NOW, *less),
        *("--override", "CLOCK_PAST_RETENTION"),
    )
    result = pylog("materialize", managed, plain, "--engine", "local")
    assert ways(result) == [Reason.TARGET_IS_OLDER]


@pytest.mark.thorough
def test_explain_says_it_with_the_answer_and_with_each_other_predicate(pylog: Any, log: Path):
    said = (log, *NOW[:2], "--topics", "compacted")
    text = " ".join(pylog("explain", *said, "--set", "min.cleanable.dirty.ratio=1").stdout.split())
    way = REASONS[Reason.RATIO_BELOW_MINIMUM].way
    # Of two partitions, each once: with the answer, and not again below.
    assert text.count(f"the way out: {way}") == 2
    assert "`--set retention.ms=MS` or `--set retention.bytes=BYTES`" in text
    rows = pylog("explain", *said, "--output", "csv").stdout
    assert rows.splitlines()[0].endswith(",way_out")
