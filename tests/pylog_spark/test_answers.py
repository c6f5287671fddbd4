"""JSON, ledger and plan files of every command over golden directories: same keys, same values.

Programs read them, so what is kept in ``golden/answers`` may get more keys and lose none. After a
change that adds one: ``PYLOG_KEEP_ANSWERS=1 pytest tests/pylog_spark/test_answers.py``, then read
the difference line by line.

What is of this machine or this moment (paths, names of runs, durations) is left out by name.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pylog_spark.cli.program import app
from storage_core.filenames import TOPIC_CONFIGS_FILE
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.golden_data import GOLDEN, Golden
from tests.kit.program import lines_of

ANSWERS: Final = GOLDEN / "answers"
IS_KEPT_ANEW: Final = "PYLOG_KEEP_ANSWERS" in os.environ
HOUR_MS: Final = 3_600_000
UNCLEAN: Final = Golden("broker-dir-unclean")

pytestmark = pytest.mark.spark

_RUN: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
# Of this machine or this moment: of these it is kept that they are there, and of which type.
_VARYING: Final = frozenset(
    {"at", "duration_ms", "elapsed_index_secs", "elapsed_secs", "max-clean-time-secs", "now_ms"}
)


class Answers:
    """What commands answer, one after the other, in a folder of their own, as lines of JSON.

    Args:
        folder: What ``{}`` in a command line stands for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = CliRunner()
        self._last_run = ""
        self.lines: list[str] = []

    def ask(self, command: str) -> None:
        """Run ``pylog``, whatever its exit status will be.

        Args:
            command: Its arguments; in them ``{}`` is the folder, ``RUN`` the run before.
        """
        words = [
            word.replace("{}", str(self._folder)).replace("RUN", self._last_run)
            for word in command.split()
        ]
        result = self._runner.invoke(app, words, prog_name="pylog")
        assert isinstance(result.exception, SystemExit | None), result.stderr
        rows = lines_of(result)
        self._last_run = next((row["run_id"] for row in rows[::-1] if row.get("run_id")), "")
        self._keep({"command": command, "exit_code": result.exit_code}, rows)

    def remove(self, name: str) -> None:
        """Delete a file of the folder."""
        (self._folder / name).unlink()

    def read_ledger(self, name: str) -> None:
        """Read all tables of a ledger; their rows have no order."""
        for table in sorted((self._folder / name).iterdir()):
            rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
            self._keep({"table": f"{name}/{table.name}"}, rows, is_ordered=False)

    def read_plan(self, name: str) -> None:
        """Read a plan file."""
        self._keep({"plan": name}, [json.loads((self._folder / name).read_text())])

    def _keep(
        self, about: dict[str, Any], rows: list[dict[str, Any]], *, is_ordered: bool = True
    ) -> None:
        lines = [json.dumps(self._plain(row)) for row in rows]
        self.lines += [json.dumps(about), *(lines if is_ordered else sorted(lines))]

    def _plain(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {
                name.replace(str(self._folder), "<folder>"): self._plain(inner, name)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._plain(inner, key) for inner in value]
        if value is not None and key in _VARYING:
            return f"<{type(value).__name__}>"
        if key == "options" and isinstance(value, str):
            return self._plain(json.loads(value))
        if isinstance(value, str):
            return _RUN.sub("<run>", value.replace(str(self._folder), "<folder>"))
        return value if value is None or isinstance(value, bool | int | float) else str(value)


@pytest.fixture
def answers(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Answers]:
    """The answers of a test: compared with those that are kept, or kept in their place."""
    asked = Answers(tmp_path)
    yield asked
    file = ANSWERS / f"{request.node.name.removeprefix('test_')}.jsonl"
    if IS_KEPT_ANEW:
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in asked.lines))
    assert asked.lines == file.read_text().splitlines()


@pytest.fixture
def closed(tmp_path: Path) -> int:
    """The log directory of a broker that was stopped, below the folder; return an hour later."""
    unpack_broker(tmp_path / "log")
    return int(broker_origin()["clock_ms"]) + HOUR_MS


@pytest.fixture
def unclean(tmp_path: Path) -> int:
    """The log directory of a broker that was killed, below the folder; return an hour later."""
    UNCLEAN.unpack(tmp_path).rename(tmp_path / "log")
    return int(UNCLEAN.case["clock_ms"]) + HOUR_MS


def test_looks_at_a_closed_directory(answers, closed):
    now = f"--now-ms {closed} --output json"
    answers.ask("inspect {}/log --segments --output json")
    answers.ask("dump {}/log/__transaction_state-0 --output json")
    answers.ask("dump {}/log/recovery-point-offset-checkpoint --output json")
    answers.ask("dump {}/log/replication-offset-checkpoint --output json")
    answers.ask(f"explain {{}}/log {now}")
    answers.ask(f"survey {{}}/log {now}")
    answers.ask(f"verify {{}}/log --deep --show 1000 {now}")
    answers.ask(f"doctor {{}}/log --show 1000 {now}")
    answers.ask("config show --origin --output json")
    answers.ask(f"groups {{}}/log {now}")
    answers.ask(f"transactions {{}}/log {now}")


@pytest.mark.thorough
def test_records_of_a_closed_directory(answers, closed):
    answers.ask("cat device-state --root {}/log --max 5 --output json")
    answers.ask("dump {}/log/device-state-0 --from 3 --max 2 --value-format json --output json")
    answers.ask("find {}/log --topic user-profiles --key user-19740 --output json")
    answers.ask(f"free {{}}/log --need 2MiB --now-ms {closed} --engine local --output json")


@pytest.mark.thorough
def test_looks_at_an_unclean_directory(answers, unclean):
    now = f"--now-ms {unclean} --output json"
    answers.ask("inspect {}/log --segments --output json")
    answers.ask(f"explain {{}}/log {now}")
    answers.ask(f"survey {{}}/log {now}")
    answers.ask(f"verify {{}}/log --deep --ledger {{}}/ledger --show 1000 {now}")
    answers.ask(f"doctor {{}}/log --show 1000 {now}")
    answers.read_ledger("ledger")


@pytest.mark.thorough
def test_a_night_and_what_follows(answers, closed):
    job = f"--role broker --topics clickstream --topics device-* --now-ms {closed} --output json"
    kept = "--trash {}/trash --ledger {}/ledger"
    answers.ask(f"run {{}}/log {job} --dry-run")
    answers.ask(f"retain {{}}/log {job} --dry-run")
    answers.ask(f"compact {{}}/log {job} --dry-run=exact")
    answers.ask(f"run {{}}/log {job} {kept}")
    answers.ask("undo RUN --trash {}/trash --ledger {}/ledger --output json")
    answers.ask(f"retain {{}}/log {job} {kept}")
    answers.ask(f"compact {{}}/log {job} {kept}")
    answers.ask(f"purge {{}}/log {job} {kept} --older-than 0s --dry-run")
    answers.ask(f"purge {{}}/log {job} {kept} --older-than 0s")
    answers.ask(f"run {{}}/log {job} {kept}")
    answers.read_ledger("ledger")


@pytest.mark.thorough
def test_a_recovery(answers, unclean):
    job = f"{{}}/log --role broker --now-ms {unclean} --output json --salvage {{}}/salvage"
    answers.ask(f"recover {job} --dry-run")
    answers.ask(f"recover {job} --allow-truncate --dry-run --plan-out {{}}/plan.json")
    answers.read_plan("plan.json")
    answers.ask(f"recover {job} --allow-truncate --trash {{}}/trash --ledger {{}}/ledger")
    answers.ask("undo RUN --trash {}/trash --ledger {}/ledger --output json")
    answers.ask(f"run {job} --allow-truncate --ledger {{}}/ledger")
    answers.read_ledger("ledger")


@pytest.mark.thorough
def test_plans_and_their_application(answers, closed):
    job = f"{{}}/log --role broker --topics clickstream --now-ms {closed} --output json"
    for step in ["retain", "compact", "run"]:
        answers.ask(f"{step} {job} --dry-run --plan-out {{}}/{step}.json")
        answers.read_plan(f"{step}.json")
    answers.ask("apply {}/run.json --dry-run --output json")
    answers.ask("apply {}/run.json --trash {}/trash --ledger {}/ledger --output json")
    answers.ask("apply {}/compact.json --ledger {}/ledger --output json")
    answers.read_ledger("ledger")


@pytest.mark.thorough
def test_a_managed_root(answers, closed):
    root = f"--now-ms {closed} --output json"
    places = "{}/log {}/managed --sync-stopped --settle 1s"
    answers.ask(f"ingest {places} --dry-run --output json")
    answers.ask(f"ingest {places} --ledger {{}}/ledger --output json")
    # As an earlier release left it. With its configs the names of new objects and their age, which
    # differ each time, would be among the answers: cli/test_carried_configs.py.
    answers.remove(f"managed/{TOPIC_CONFIGS_FILE}")
    answers.ask(f"survey {{}}/managed {root}")
    answers.ask(f"verify {{}}/managed {root}")
    answers.ask(f"explain {{}}/managed {root}")
    answers.ask("inspect {}/managed --segments --output json")
    answers.ask(f"run {{}}/managed --role managed {root} --dry-run")
    answers.ask(f"run {{}}/managed --role managed {root} --ledger {{}}/ledger")
    answers.ask("materialize {}/managed {}/plain --dry-run --output json")
    answers.ask("materialize {}/managed {}/plain --ledger {}/ledger --output json")
    answers.ask(f"purge {{}}/managed --role managed {root} --older-than 0s --ledger {{}}/ledger")
    answers.read_ledger("ledger")


@pytest.mark.thorough
def test_one_partition(answers, unclean):
    now = f"--now-ms {unclean} --set cleanup.policy=compact,delete --set retention.ms=1000"
    partition = "{}/log/compacted-0"
    answers.ask(f"partition recover {partition} {now} --dry-run")
    answers.ask(f"partition recover {partition} {now}")
    answers.ask(f"partition clean {partition} {now} --first-dirty-offset 0 --dry-run")
    answers.ask(f"partition clean {partition} {now} --first-dirty-offset 0")
    answers.ask(f"partition retain {partition} {now} --dry-run")
    answers.ask(f"partition retain {partition} {now}")
    answers.ask(f"partition truncate {partition} {now} --to 500")
