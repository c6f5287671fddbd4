"""Guard a retention against a wrong config or a wrong clock. It has the last word on what retention
takes.

What Kafka would delete goes where the topic's limits are the cluster's own and the clock is not
suspect. Elsewhere no more than a share goes: where the limits are second-hand, where they were much
longer at the last run, and where a topic that is still written to would lose everything.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options import RunLimits
from pylog_spark.schemas import ALLOWED_BY, Reason, Status
from storage_core.errors import StorageError
from storage_core.wording import span_text, time_text

# A topic that had a record so shortly before the newest of all is still written to.
STILL_WRITTEN_MS: Final = 24 * 3_600_000
# A limit that was more than so many times what it is now was much longer.
MUCH_LONGER: Final = 2
# What takes segments, and what of a topic decides about that; also the names of columns.
_LIMITS: Final = {
    "by_time_bytes": ("retention.ms", "retention_ms"),
    "by_size_bytes": ("retention.bytes", "retention_bytes"),
}
_COLUMNS: Final = (
    *("root", "topic", "partition", "directory", "status", "bytes"),
    *("by_size_bytes", "by_time_bytes", "retention_ms", "retention_bytes"),
)
_LOOKED_AT: Final = ("topic", "directory", "bytes", "newest_timestamp", "blocked_timestamp")

Row = Mapping[str, Any]
Refusal = tuple[Reason, str]
# Root and topic.
TopicPlace = tuple[str, str]


class FormerLimits(NamedTuple):
    """A topic's retention limits at their last enforcement. -1 is no limit, None unknown."""

    run_id: str
    retention_ms: int | None
    retention_bytes: int | None


class Evidence(Protocol):
    """What speaks for or against deletions, beside what was observed."""

    @property
    def now_ms(self) -> int:
        """The run's clock."""
        ...

    def doubt(self, root: str, topic: str, key: str) -> str | None:
        """Return why a setting may not be the cluster's own, or None."""
        ...

    def newest_records(self) -> Mapping[TopicPlace, int]:
        """Return the time of each topic's newest record. The topics are all that the run is
        about."""
        ...

    def checkpoint_ms(self, root: str) -> int | None:
        """Return the time of the broker's last checkpoint write. None where that tells nothing."""
        ...

    def former_limits(self, topics: Collection[TopicPlace]) -> Mapping[TopicPlace, FormerLimits]:
        """Return what the ledger knows of these topics."""
        ...


def refuse_deletions(
    plans: pa.Table, limits: RunLimits, evidence: Evidence, *, observed: pa.Table | None = None
) -> pa.Table:
    """Turn plans that may not be carried out into skipped rows. What an operator asked to be
    deleted, by raising a log's start, counts for nothing here.

    Args:
        plans: Rows of ``schemas.RETENTION_PLAN`` that are to be carried out, or reported.
        limits: How much may go, and which guards are overridden.
        evidence: What else is known; asked only where something is in doubt.
        observed: Rows of all partitions that were looked at: they say what is whole, and how late
            it is; None where these are the plans.
    """
    numbers = pc.indices_nonzero(pc.equal(plans["status"], Status.PLANNED.value))
    rows = plans.select(list(_COLUMNS)).take(numbers).to_pylist()
    planned = zip(numbers.to_pylist(), rows, strict=True)
    losing = {number: row for number, row in planned if _expired_bytes(row)}
    if not losing:
        return plans
    looked = (plans if observed is None else observed).select(list(_LOOKED_AT)).to_pylist()
    refusals = _Shares(losing, looked, limits.max_delete_ratio).refuse(evidence)
    if Reason.CLOCK_PAST_RETENTION not in limits.overrides:
        refusals |= _find_wrong_clocks(losing, looked, evidence)
    if not refusals:
        return plans
    changed = {name: plans[name].to_pylist() for name in ("status", "reason", "error")}
    for number, (reason, why) in refusals.items():
        changed["status"][number] = Status.SKIPPED.value
        changed["reason"][number] = reason.value
        changed["error"][number] = why
    for name, values in changed.items():
        place = plans.schema.get_field_index(name)
        plans = plans.set_column(place, plans.schema.field(name), pa.array(values, pa.string()))
    return plans


class _Excess(NamedTuple):
    """An excessive loss: its place, lost bytes and total bytes. It is a loss of the run, a topic
    or a partition directory."""

    what: str
    lost: int
    total: int


class _Shares:
    """The lost shares of the run, its topics and its partitions."""

    def __init__(self, losing: Mapping[int, Row], looked: Sequence[Row], most: float) -> None:
        self._losing = losing
        self._most = most
        self._totals: dict[str, int] = defaultdict(int)
        for row in looked:
            for what in _wholes(row):
                self._totals[what] += row["bytes"] or 0

    def refuse(self, evidence: Evidence) -> dict[int, Refusal]:
        """Return the rows to refuse for too large a loss.

        They would lose more than the share on a word that is not good enough for that.
        """
        candidates = self._excesses(self._losing)
        held = self._hold(candidates, evidence)
        refusals = {}
        for number, (what, lost, total) in self._excesses(held).items():
            why = (
                f"{lost} of the {total} bytes of {what} would go, {lost / total:.0%}, and "
                f"{held[number]}: --max-delete-ratio {self._most:g} allows less; "
                f"{ALLOWED_BY[Reason.DELETES_TOO_MUCH]} allows it"
            )
            refusals[number] = (Reason.DELETES_TOO_MUCH, why)
        return refusals

    def _excesses(self, numbers: Collection[int]) -> dict[int, _Excess]:
        """Return what some rows, if they go together, take too much of."""
        lost: dict[str, int] = defaultdict(int)
        for number in numbers:
            for what in _wholes(self._losing[number]):
                lost[what] += _expired_bytes(self._losing[number])
        excesses = {}
        for number in numbers:
            # The smallest whole is the one to hear of.
            for what in reversed(_wholes(self._losing[number])):
                if lost[what] > self._most * self._totals[what]:
                    excesses[number] = _Excess(what, lost[what], self._totals[what])
                    break
        return excesses

    def _hold(self, candidates: Collection[int], evidence: Evidence) -> dict[int, str]:
        """Return the rows for which the share counts, and why it does."""
        if not candidates:
            return {}
        held = {
            number: why
            for number, row in self._losing.items()
            if (why := _second_hand(row, evidence)) is not None
        }
        rows = {n: self._losing[n] for n in candidates if n not in held}
        held |= self._whole_topics(rows, evidence)
        rows = {number: row for number, row in rows.items() if number not in held}
        if rows:
            try:
                former = evidence.former_limits(
                    {(row["root"], row["topic"]) for row in rows.values()}
                )
            except StorageError as error:
                # What a ledger cannot say stops these deletions, and hides no work of the run.
                return held | dict.fromkeys(rows, f"its former limits cannot be read: {error}")
            for number, row in rows.items():
                why = _was_much_longer(row, former.get((row["root"], row["topic"])))
                if why is not None:
                    held[number] = why
        return held

    def _whole_topics(self, rows: Mapping[int, Row], evidence: Evidence) -> dict[int, str]:
        """Return the rows of live topics about to lose everything."""
        lost: dict[str, int] = defaultdict(int)
        for row in self._losing.values():
            lost[row["topic"]] += _expired_bytes(row)
        whole = {
            number: row
            for number, row in rows.items()
            if lost[row["topic"]] >= self._totals[f"topic {row['topic']}"]
        }
        if not whole:
            return {}
        newest: dict[str, int] = {}
        for (_, topic), at in evidence.newest_records().items():
            # A record of the future says that its topic was written to, not when.
            newest[topic] = max(newest.get(topic, 0), min(at, evidence.now_ms))
        latest = max(newest.values(), default=0)
        return {
            number: f"topic {row['topic']} is still written to and would lose everything"
            for number, row in whole.items()
            if newest.get(row["topic"], 0) >= latest - STILL_WRITTEN_MS
        }


def _wholes(row: Row) -> tuple[str, ...]:
    """Return what a partition is part of, the largest first."""
    if row["topic"] is None:
        return ("the run",)
    return "the run", f"topic {row['topic']}", row["directory"]


def _second_hand(row: Row, evidence: Evidence) -> str | None:
    """Return why a row's limit may not be the cluster's own. Only limits by which something goes
    are asked about; None if they are the cluster's own."""
    for loss_column, (key, _) in _LIMITS.items():
        if row[loss_column]:
            doubt = evidence.doubt(row["root"], row["topic"], key)
            if doubt is not None:
                return doubt
    return None


def _was_much_longer(row: Row, former: FormerLimits | None) -> str | None:
    """Return the limit with a much longer value at its last enforcement. None if there is none."""
    if former is None:
        return None
    for loss_column, (key, column) in _LIMITS.items():
        before, now = getattr(former, column), row[column]
        if not row[loss_column] or before is None:
            continue
        if before < 0 or before > MUCH_LONGER * now:
            was = "without limit" if before < 0 else str(before)
            return f"its {key} was {was} in run {former.run_id} and is {now}"
    return None


def _find_wrong_clocks(
    losing: Mapping[int, Row], looked: Sequence[Row], evidence: Evidence
) -> dict[int, Refusal]:
    """Return the rows to refuse because of a suspect clock. They lose something by age, and the
    clock is far from every time known.

    A clock that is ahead makes every record too old; one record written lately, in whatever
    partition, shows that it is not, and so does a checkpoint of the broker.
    """
    aged = {number: row for number, row in losing.items() if row["by_time_bytes"]}
    if not aged:
        return {}
    now_ms, shortest = evidence.now_ms, min(row["retention_ms"] for row in aged.values())
    newest = max(
        (row[name] for row in looked for name in _TIMES if row[name] is not None), default=0
    )
    if now_ms - newest > shortest:
        # What was read on the way does not show it: look at the end of every partition.
        newest = max([newest, *evidence.newest_records().values()])
    refusals: dict[int, Refusal] = {}
    for number, row in aged.items():
        limit, checkpoint = row["retention_ms"], evidence.checkpoint_ms(row["root"])
        if now_ms - newest > limit:
            sign = f"the newest record of all partitions is of {time_text(newest)}"
        elif checkpoint is not None and now_ms - checkpoint > limit:
            sign = f"the newest checkpoint in {row['root']} is of {time_text(checkpoint)}"
        else:
            continue
        why = (
            f"the clock says {time_text(now_ms)}, and {sign}: that is longer ago than "
            f"retention.ms, {limit} ({span_text(limit)}); if the clock is right, "
            f"{ALLOWED_BY[Reason.CLOCK_PAST_RETENTION]}"
        )
        refusals[number] = (Reason.CLOCK_PAST_RETENTION, why)
    return refusals


_TIMES: Final = ("newest_timestamp", "blocked_timestamp")


def _expired_bytes(row: Row) -> int:
    if row["status"] != Status.PLANNED:
        return 0
    return int(row["by_size_bytes"] or 0) + int(row["by_time_bytes"] or 0)
