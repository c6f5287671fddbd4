"""What a recovery keeps of each log until it tells people and the ledger."""

from types import SimpleNamespace
from typing import Any

import pytest

from pylog_spark.operations.recover import recovered_logs
from pylog_spark.operations.recover.recovered_logs import RecoveredLogs
from pylog_spark.outcomes import Status
from pylog_spark.run.plan_table import Outcome
from pylog_spark.schemas import RECOVERY_WORK


def outcome(duration_ms: int, *, is_repaired: bool) -> Outcome:
    columns = {"status": Status.PLANNED.value, "is_repaired": is_repaired}
    return Outcome(columns=columns, duration_ms=duration_ms)


def test_the_time_of_a_log_has_the_load_that_found_it_damaged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recovered_logs, "note_operations", lambda *_: None)
    job = SimpleNamespace(options=SimpleNamespace(dry_run=True), run_id="r")
    run: Any = SimpleNamespace(job=job)
    work = RECOVERY_WORK.empty_table().from_pylist(
        [{"directory": name, "duration_ms": 1} for name in ("/t-0", "/t-1")], RECOVERY_WORK
    )
    logs = RecoveredLogs(run, work)
    loaded = {0: outcome(20, is_repaired=True), 1: outcome(30, is_repaired=False)}
    assert logs.leave_idle(loaded) == {1}
    logs.end({0: outcome(400, is_repaired=True)})
    assert {number: each.duration_ms for number, each in logs.outcomes.items()} == {0: 420, 1: 30}
