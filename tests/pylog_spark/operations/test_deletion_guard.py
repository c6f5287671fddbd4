"""Which deletions a run believes: by whose word, by whose clock, and how much on a doubtful one."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pylog_spark.operations.retain import driver as retain
from pylog_spark.operations.retain.driver import FormerLimits, refuse_deletions
from pylog_spark.options import JobOptions, RunLimits
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.recording import Recorder
from pylog_spark.schemas import RETENTION_PLAN
from storage_core.clock import ManualClock
from storage_core.errors import StorageError
from storage_core.wording import time_text

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_795_000_000_000
ALL = RunLimits(max_delete_ratio=1.0)
DOUBT = "its retention.ms is an assumed default"


@dataclass
class Known:
    """What a test says is known; it remembers what was asked."""

    doubts: dict[str, str] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    checkpoint: int | None = NOW_MS
    former: dict[str, FormerLimits] = field(default_factory=dict)
    now_ms: int = NOW_MS
    asked: list[str] = field(default_factory=list)

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        return self.doubts.get(topic) or self.doubts.get(key)

    def newest_records(self) -> dict[tuple[str, str], int]:
        self.asked.append("newest records")
        return {("/log", topic): at for topic, at in self.newest.items()}

    def checkpoint_ms(self, root: str) -> int | None:
        return self.checkpoint

    def former_limits(self, topics) -> dict[tuple[str, str], FormerLimits]:
        self.asked.append("former limits")
        return {("/log", topic): limits for topic, limits in self.former.items()}


SECOND_HAND = {"retention.ms": DOUBT, "retention.bytes": "its retention.bytes is what --set says"}


def plan_of(topic, partition=0, *, size=100, by_time=0, by_size=0, by_log_start=0, **others):
    row = {
        "root": "/log",
        "topic": topic,
        "partition": partition,
        "directory": f"/log/{topic}-{partition}",
        "status": "planned" if by_time + by_size + by_log_start else "skipped",
        "reason": None if by_time + by_size + by_log_start else "NOTHING_TO_RETAIN",
        "bytes": size,
        "by_time_bytes": by_time,
        "by_size_bytes": by_size,
        "by_log_start_bytes": by_log_start,
        "removed": [],
        "retention_ms": DAY_MS,
        "retention_bytes": 50,
        "blocked_by": "WITHIN_TIME",
        "blocked_timestamp": NOW_MS - HOUR_MS,
        "newest_timestamp": NOW_MS - HOUR_MS if by_time else None,
    }
    return {**row, **others}


def table_of(rows) -> pa.Table:
    return pa.Table.from_batches([rows_to_batch(RETENTION_PLAN, rows)], schema=RETENTION_PLAN)


def refusals_of(rows, known=None, limits=None, *, idle=()) -> dict:
    """Return reason and explanation of what is refused; idle rows were looked at, no more."""
    table = table_of(rows)
    observed = table_of([*rows, *idle])
    after = refuse_deletions(table, limits or RunLimits(), known or Known(), observed=observed)
    assert after.schema == table.schema
    assert after.num_rows == table.num_rows
    return {
        (row["topic"], row["partition"]): (row["reason"], row["error"])
        for row, before in zip(after.to_pylist(), rows, strict=True)
        if row["status"] != before["status"]
    }


def refused(rows, known=None, limits=None, *, idle=()) -> dict:
    found = refusals_of(rows, known, limits, idle=idle)
    return {name: reason for name, (reason, _) in found.items()}


def test_what_kafka_would_delete_goes_where_the_cluster_says_so_itself():
    """The oldest complaint about Kafka's disks: a limit that takes most of a log, each night."""
    rows = [
        plan_of("sized", size=1000, by_size=900),
        plan_of("daily", size=1000, by_time=950),
        plan_of("idle", by_time=100, newest_timestamp=NOW_MS - 3 * DAY_MS),
    ]
    known = Known(newest={"sized": NOW_MS, "daily": NOW_MS, "idle": NOW_MS - 3 * DAY_MS})
    assert refused(rows, known) == {}


@pytest.mark.parametrize("ms", [-1, 0, 5, DAY_MS, 10 * DAY_MS, 2**62])
@pytest.mark.parametrize("size", [-1, 0, 50, 2**62])
def test_whatever_a_ledger_says_no_more_goes_than_without_one(ms, size):
    rows = [
        plan_of("sized", size=1000, by_size=900),
        plan_of("daily", size=1000, by_time=950),
        plan_of("doubted", size=1000, by_time=950),
        plan_of("idle", by_time=100, newest_timestamp=NOW_MS - 3 * DAY_MS),
    ]
    facts = {"doubts": {"doubted": DOUBT}, "newest": {"sized": NOW_MS, "daily": NOW_MS}}
    without = refused(rows, Known(**facts))
    limits = FormerLimits(run_id="forged", retention_ms=ms, retention_bytes=size)
    forged = dict.fromkeys(("sized", "daily", "doubted", "idle"), limits)
    assert without
    assert refused(rows, Known(**facts, former=forged)).items() >= without.items()


def test_of_what_goes_by_a_word_at_second_hand_half_may_go_but_not_more():
    rows = [plan_of("a", by_time=50), plan_of("b", by_time=30, by_size=21), plan_of("c", size=900)]
    assert refused(rows, Known(doubts=SECOND_HAND)) == {("b", 0): "DELETES_TOO_MUCH"}
    assert refused(rows, Known(doubts=SECOND_HAND), ALL) == {}
    # Only the limit that takes something has to be the cluster's own.
    assert refused([plan_of("a", by_size=60)], Known(doubts={"retention.ms": DOUBT})) == {}


def test_a_topic_and_a_run_count_as_well():
    known = Known(doubts=SECOND_HAND)
    a = [plan_of("a", 0, size=1000, by_time=500), plan_of("a", 1, size=1, by_time=1)]
    assert refused([*a, plan_of("b", size=5000)], known) == {
        ("a", 0): "DELETES_TOO_MUCH",
        ("a", 1): "DELETES_TOO_MUCH",
    }
    most = [plan_of("a", size=100, by_time=90), plan_of("b", size=10, by_time=4)]
    assert set(refused(most, known)) == {("a", 0), ("b", 0)}
    # What goes by the cluster's own word is no reason to hold the rest.
    assert refused(most, Known(doubts={"b": DOUBT})) == {}


def test_partitions_that_keep_everything_are_part_of_a_topic_and_of_the_run():
    rows = [plan_of("a", size=100, by_time=50), plan_of("b", size=100, by_time=30)]
    known = Known(doubts=SECOND_HAND)
    rows[0]["bytes"] = 90
    assert set(refused(rows, known)) == {("a", 0)}
    rows[0]["bytes"] = 100
    idle = [plan_of("a", 1, size=900)]
    assert refused(rows, known, RunLimits(max_delete_ratio=0.35)).keys() == {("a", 0), ("b", 0)}
    assert refused(rows, known, RunLimits(max_delete_ratio=0.5), idle=idle) == {}
    # Alone the partition loses more than that; the topic and the run do not.
    assert refused(rows, known, RunLimits(max_delete_ratio=0.35), idle=idle) == {
        ("a", 0): "DELETES_TOO_MUCH"
    }


def test_directories_of_one_name_are_weighed_apart():
    rows = [
        plan_of("a", size=100, by_time=90),
        plan_of("a", size=900, directory="/log/a-0.0123456789abcdef0123456789abcdef-future"),
    ]
    (why,) = refusals_of(rows, Known(doubts=SECOND_HAND)).values()
    assert "90 of the 100 bytes of /log/a-0 would go" in why[1]


def test_what_an_operator_deleted_counts_for_nothing():
    assert refused([plan_of("a", by_log_start=100)], Known(doubts=SECOND_HAND)) == {}


def test_why_says_how_much_of_what_on_whose_word_and_what_allows_it():
    rows = [plan_of("a", by_time=80), plan_of("b", size=900)]
    ((_, why),) = refusals_of(rows, Known(doubts=SECOND_HAND)).values()
    assert "80 of the 100 bytes of /log/a-0 would go, 80%" in why
    assert DOUBT in why
    assert "--max-delete-ratio 0.5 allows less; --max-delete-ratio 1 allows it" in why


@pytest.mark.parametrize(
    ("former", "reason"),
    [
        ((30 * DAY_MS, 50), "DELETES_TOO_MUCH"),
        ((-1, 50), "DELETES_TOO_MUCH"),
        ((2 * DAY_MS, -1), None),
        ((DAY_MS, 50), None),
        ((HOUR_MS, 50), None),
        ((None, None), None),
    ],
    ids=["a month", "without limit", "not twice", "the same", "shorter", "unknown"],
)
def test_a_retention_that_was_much_longer_at_the_last_run_is_held(former, reason):
    rows = [plan_of("a", by_time=80), plan_of("b", size=900)]
    known = Known(former={"a": FormerLimits("the-run", *former)})
    found = refusals_of(rows, known)
    assert {reason for reason, _ in found.values()} == ({reason} if reason else set())
    assert all("in run the-run and is 86400000" in why for _, why in found.values())
    # Half may go as ever, and then nobody has to ask.
    known = Known(former={"a": FormerLimits("the-run", *former)})
    assert refused([plan_of("a", by_time=40), plan_of("b", size=900)], known) == {}
    assert known.asked == []


def test_a_limit_of_bytes_that_was_much_longer_counts_for_what_it_takes():
    rows = [plan_of("a", by_size=80)]
    assert refused(rows, Known(former={"a": FormerLimits("r", -1, 101)}))
    assert refused(rows, Known(former={"a": FormerLimits("r", -1, 100)})) == {}


@pytest.mark.parametrize(
    ("age_ms", "reason"),
    [(0, "DELETES_TOO_MUCH"), (DAY_MS, "DELETES_TOO_MUCH"), (DAY_MS + 1, None)],
    ids=["until now", "a day before the others", "earlier"],
)
def test_a_topic_that_is_still_written_to_does_not_lose_everything(age_ms, reason):
    rows = [
        plan_of("emptied", 0, by_size=100),
        plan_of("emptied", 1, size=10, by_size=10),
        plan_of("b", size=900),
    ]
    latest = NOW_MS - HOUR_MS
    known = Known(newest={"emptied": latest - age_ms, "b": latest})
    found = refused(rows, known)
    assert found == ({("emptied", 0): reason, ("emptied", 1): reason} if reason else {})
    assert refused(rows, known, ALL) == {}
    # A partition of it that keeps something is enough.
    assert refused(rows, known, idle=[plan_of("emptied", 2, size=1)]) == {}


def test_a_record_of_the_future_does_not_make_the_others_old():
    rows = [plan_of("emptied", by_size=100), plan_of("b", size=900)]
    known = Known(newest={"emptied": NOW_MS - HOUR_MS, "b": NOW_MS + 9000 * DAY_MS})
    assert refused(rows, known) == {("emptied", 0): "DELETES_TOO_MUCH"}


LATE = {"blocked_by": "LAST_SEGMENT", "blocked_timestamp": None}


@pytest.mark.item("FLT-13")
def test_a_clock_for_which_every_record_is_too_old_is_not_believed():
    old = NOW_MS - DAY_MS - 1
    rows = [plan_of(t, by_time=100, newest_timestamp=old, **LATE) for t in ("a", "b")]
    known = Known(newest={"a": old, "b": old})
    ((reason, why), _) = refusals_of(rows, known, ALL).values()
    assert reason == "CLOCK_PAST_RETENTION"
    assert f"the newest record of all partitions is of {time_text(old)}" in why
    assert "--override CLOCK_PAST_RETENTION" in why
    assert len(refused(rows, known, ALL)) == 2
    overridden = RunLimits(max_delete_ratio=1, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
    assert refused(rows, known, overridden) == {}


@pytest.mark.item("FLT-13")
@pytest.mark.parametrize("at", [NOW_MS - DAY_MS, NOW_MS + 9 * DAY_MS], ids=["lately", "future"])
def test_one_record_written_lately_in_any_partition_shows_that_the_clock_is_right(at):
    """A hundred busy partitions in which nothing goes say so as well, and those of other passes."""
    old = NOW_MS - 9 * DAY_MS
    rows = [plan_of("idle", by_time=100, newest_timestamp=old, **LATE)]
    known = Known(newest={"idle": old})
    assert refused(rows, known, ALL) == {("idle", 0): "CLOCK_PAST_RETENTION"}
    busy = [plan_of("busy", number, size=900, blocked_timestamp=at) for number in range(100)]
    known = Known(newest={"idle": old})
    assert refused(rows, known, ALL, idle=busy) == {}
    assert known.asked == []
    elsewhere = Known(newest={"idle": old, "never looked into": at})
    assert refused(rows, elsewhere, ALL) == {}


def test_a_clock_is_measured_by_the_retention_that_takes_something():
    at = NOW_MS - 2 * HOUR_MS
    rows = [plan_of("a", by_time=40, newest_timestamp=at), plan_of("b", size=900)]
    rows[0] |= {"retention_ms": HOUR_MS, "blocked_timestamp": at}
    rows[1] |= {"blocked_timestamp": at}
    assert refused(rows) == {("a", 0): "CLOCK_PAST_RETENTION"}
    assert refused([rows[0] | {"retention_ms": 2 * HOUR_MS}, rows[1]]) == {}


def test_a_clock_that_is_far_from_the_newest_checkpoint_is_not_believed_for_records_of_the_future():
    rows = [plan_of("a", by_time=40), plan_of("b", size=900)]
    long_ago = Known(checkpoint=NOW_MS - DAY_MS - 1)
    ((reason, why),) = refusals_of(rows, long_ago).values()
    assert reason == "CLOCK_PAST_RETENTION"
    assert f"the newest checkpoint in /log is of {time_text(NOW_MS - DAY_MS - 1)}" in why
    assert refused(rows, Known(checkpoint=NOW_MS - DAY_MS)) == {}
    assert refused(rows, Known(checkpoint=None)) == {}


def test_what_goes_for_its_size_needs_no_clock():
    known = Known(checkpoint=1)
    assert refused([plan_of("a", by_size=80, **LATE)], known, ALL) == {}
    assert known.asked == []


def test_former_limits_that_cannot_be_read_hold_what_they_would_decide():
    class Lost(Known):
        def former_limits(self, topics) -> dict[tuple[str, str], FormerLimits]:
            raise StorageError("/ledger", "files of this table are gone")

    rows = [plan_of("a", by_time=80), plan_of("b", size=900)]
    ((reason, why),) = refusals_of(rows, Lost()).values()
    assert reason == "DELETES_TOO_MUCH"
    assert "its former limits cannot be read: /ledger: files of this table are gone" in why
    assert refused(rows, Lost(), ALL) == {}


def test_an_ordinary_night_asks_for_nothing_more():
    rows = [plan_of("a", by_time=40), plan_of("b", by_size=40), plan_of("c", size=900)]
    known = Known()
    assert refused(rows, known) == {}
    assert known.asked == []


def test_what_is_refused_is_on_record_before_anything_goes(monkeypatch):
    """Else a run that is killed leaves rows by which the limit that it had was enforced."""
    rows = [plan_of("a", 0, by_time=80), plan_of("a", 1, size=900, by_time=1), plan_of("b")]
    table = table_of(rows)
    recorded: list[tuple] = []

    def killed_waves(*_):
        yield {1: Outcome()}
        raise KeyboardInterrupt

    class Noting(Recorder):
        def results(self, rows: pa.Table) -> None:
            recorded.extend((row["partition"], row["reason"]) for row in rows.to_pylist())

    run = SimpleNamespace(
        job=SimpleNamespace(options=JobOptions(now_ms=NOW_MS), run_id="r"),
        recorder=Noting(ledger=None, clock=ManualClock(1), facts={"run_id": "r"}),
    )
    observation = SimpleNamespace(
        context=None, rows=lambda *_, **__: table, note_changes=lambda *_: None
    )
    monkeypatch.setattr(retain, "settle_plans", lambda *given, **_: given[-1])
    monkeypatch.setattr(retain, "read_planned", lambda *_: [])
    monkeypatch.setattr(retain, "RunEvidence", lambda *_: Known(doubts={"a": DOUBT}))
    monkeypatch.setattr(retain, "run_waves", killed_waves)
    with pytest.raises(KeyboardInterrupt):
        retain.retain_step(run, observation)
    assert recorded == [(0, "DELETES_TOO_MUCH"), (1, None)]
