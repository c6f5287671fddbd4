"""What a recovery found and did, as the rows that people and the ledger get."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import rows_to_batch
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.waves import Outcomes
from pylog_spark.schemas import CUT, RECOVERY, RECOVERY_WORK, RESULT, Status
from storage_core.maintenance.verification.findings import Severity

_OUTCOME: Final = ("status", "reason", "error_class", "error")
# What results tell of a partition beside its outcome; not its segments, of which all have too many.
_KEPT_NAMES: Final = (
    *("root", "topic", "partition", "directory", "status", "reason", "error_class", "error"),
)
_NUMBERS: Final = ("bytes", "segments", "duration_ms")
# Partitions that a note names; the rows have all.
_MOST_NAMED: Final = 10

Row = dict[str, Any]


class RecoveryRows:
    """The partitions of one run, and what became of each.

    Args:
        run_id: The run.
        action: The command that asked for it.

    Attributes:
        partitions: Rows of ``schemas.RECOVERY_WORK``; their numbers are the ordinals.
        outcomes: By ordinal; of what was begun, with the columns of ``schemas.RECOVERED``.
    """

    def __init__(self, run_id: str, action: str) -> None:
        self._run_id = run_id
        self._action = action
        self.partitions = RECOVERY_WORK.empty_table()
        self.outcomes: Outcomes = {}

    def results(self) -> pa.Table:
        """Return the rows of ``schemas.RESULT``, worst first."""
        rows = self._result_rows(range(self.partitions.num_rows))
        order = {Status.FAILED.value: 0, Status.SKIPPED.value: 2}
        rows.sort(
            key=lambda row: (
                order.get(row["status"], 1),
                row["topic"] is None,
                row["topic"] or "",
                row["partition"] or 0,
                row["root"],
            )
        )
        return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)

    def cuts(self) -> pa.Table:
        """Return the rows of ``schemas.CUT``: what was cut, or would be."""
        rows = []
        for ordinal in sorted(self.outcomes):
            outcome = self.outcomes[ordinal].columns
            salvage = outcome.get("salvage")
            place = None if salvage is None else json.loads(salvage)["directory"]
            for cut in _cuts(self.outcomes[ordinal]):
                names = ("file", "position", "size_bytes", "records", "first_offset", "reason")
                rows.append(
                    self._name(ordinal)
                    | {name: cut[name] for name in names}
                    | {
                        "status": outcome["status"],
                        "is_whole_segment": cut["is_whole_segment"],
                        "salvaged_to": place,
                    }
                )
        return pa.Table.from_batches([rows_to_batch(CUT, rows)], schema=CUT)

    def recoveries(self) -> pa.Table:
        """Return the rows of ``schemas.RECOVERY``: what was loaded, and where each log ends."""
        names = ("log_start_offset", "log_end_offset", "rebuilt_segments", "steps")
        rows = [
            self._name(ordinal)
            | {name: outcome.columns[name] for name in names}
            | {
                "high_watermark": self.partitions["high_watermark"][ordinal].as_py(),
                "operations": outcome.columns.get("operations"),
                "directory": self.partitions["directory"][ordinal].as_py(),
            }
            for ordinal, outcome in sorted(self.outcomes.items())
            if outcome.columns.get("log_end_offset") is not None
        ]
        return pa.Table.from_batches([rows_to_batch(RECOVERY, rows)], schema=RECOVERY)

    def worst_cut(self) -> Severity | None:
        """Return how bad the worst cut is, None without any."""
        cuts = [cut for outcome in self.outcomes.values() for cut in _cuts(outcome)]
        if not cuts:
            return None
        is_bad = self.low_ends() or any(cut["records"] for cut in cuts)
        return Severity.ERROR if is_bad else Severity.WARN

    def has_missing_tail(self) -> bool:
        """Whether the tail of a log was gone before: it ends below what was acknowledged, uncut."""
        return any(not _cuts(self.outcomes[ordinal]) for ordinal, _, _ in self._low_ends())

    def low_ends(self) -> list[str]:
        """Return the logs that end, or would end, below what was acknowledged."""
        return [
            f"{name['topic']}-{name['partition']} at {end} instead of {mark}"
            for ordinal, end, mark in self._low_ends()
            for name in [self._name(ordinal)]
        ]

    def _low_ends(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ordinal, log end offset, high watermark) of each of them."""
        for ordinal, outcome in sorted(self.outcomes.items()):
            mark = self.partitions["high_watermark"][ordinal].as_py()
            end = outcome.columns.get("log_end_offset")
            if mark is not None and end is not None and end < mark:
                yield ordinal, end, mark

    def low_ends_note(self) -> str | None:
        """Return what to start first where logs end below what was acknowledged, else None."""
        low = self.low_ends()
        if not low:
            return None
        more = f" and {len(low) - _MOST_NAMED} more" if len(low) > _MOST_NAMED else ""
        return (
            f"{len(low)} logs end, or would end, below their checkpointed high watermark: "
            f"{', '.join(low[:_MOST_NAMED])}{more}; it is lowered to the end. Start the "
            "brokers that hold their other replicas first, and keep "
            "unclean.leader.election.enable off, so that this one fetches from them what it lost"
        )

    def result_rows(self, ordinals: Iterable[int]) -> pa.Table:
        """Return the rows of ``schemas.RESULT`` of some partitions."""
        batch = rows_to_batch(RESULT, self._result_rows(ordinals))
        return pa.Table.from_batches([batch], schema=RESULT)

    def _name(self, ordinal: int) -> Row:
        names = ("root", "topic", "partition")
        return {name: self.partitions[name][ordinal].as_py() for name in names}

    def _result_rows(self, ordinals: Iterable[int]) -> list[Row]:
        listed = list(ordinals)
        columns = self.partitions.select([*_KEPT_NAMES, *_NUMBERS])
        found = columns.take(pa.array(listed, pa.int64())).to_pylist()
        rows = []
        for ordinal, partition in zip(listed, found, strict=True):
            row = {name: partition[name] for name in _KEPT_NAMES}
            row |= {
                "run_id": self._run_id,
                "action": self._action,
                "bytes_before": partition["bytes"],
                "bytes_after": partition["bytes"],
                "segments_before": partition["segments"],
                "segments_after": partition["segments"],
                "duration_ms": partition["duration_ms"],
            }
            outcome = self.outcomes.get(ordinal)
            if outcome is not None:
                columns = outcome.columns
                row |= {name: columns.get(name) for name in _OUTCOME}
                row["duration_ms"] += outcome.duration_ms
                if columns["status"] in {Status.DONE, Status.PLANNED}:
                    row["bytes_after"] = columns["bytes_after"]
                    row["segments_after"] = columns["segments_after"]
            rows.append(row)
        return rows


def _cuts(outcome: Outcome) -> list[dict[str, Any]]:
    cuts: list[dict[str, Any]] = json.loads(outcome.columns.get("cuts") or "[]")
    return cuts
