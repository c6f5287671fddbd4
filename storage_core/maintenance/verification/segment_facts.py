"""Facts about a verified segment, small enough to be sent between tasks."""

from dataclasses import dataclass
from typing import Any

from storage_core.log.believed_epochs import EpochRun
from storage_core.log.open_transactions import OpenSpan
from storage_core.maintenance.verification.batch_stream import TailKind
from storage_core.maintenance.verification.transactions import (
    AbortedTransaction,
    ProducerSpans,
    SegmentTransactions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts about a verified segment that its partition needs."""

    base_offset: int
    first_offset: int  # base offset of its first batch, -1 without batches
    last_offset: int  # largest last offset, -1 without batches
    size_bytes: int
    end_position: int
    tail: TailKind  # the content behind it
    batches: int
    bad_batches: int  # number of batches with a wrong checksum
    records: int  # records that the good ones count; legacy entries count as one
    max_timestamp: int  # largest of all batches, -1 without any
    has_producers: bool  # whether an idempotent producer wrote here
    epochs: tuple[EpochRun, ...]  # runs of batches of one leader epoch, in file order
    transactions: SegmentTransactions
    read_seconds: float  # time it took to read and check

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "SegmentFacts":
        """Return facts from the values of ``dataclasses.asdict``, after JSON."""
        saved = values["transactions"]
        transactions = SegmentTransactions(
            spans=tuple(
                ProducerSpans(
                    **{**spans, "before": _span(spans["before"]), "after": _span(spans["after"])}
                )
                for spans in saved["spans"]
            ),
            aborted=tuple(AbortedTransaction(**entry) for entry in saved["aborted"]),
            abort_markers=tuple(saved["abort_markers"]),
        )
        changes = {
            "tail": TailKind(values["tail"]),
            "epochs": tuple(EpochRun(**run) for run in values["epochs"]),
            "transactions": transactions,
        }
        return cls(**{**values, **changes})


def _span(values: list[int] | None) -> OpenSpan | None:
    return None if values is None else OpenSpan(*values)
