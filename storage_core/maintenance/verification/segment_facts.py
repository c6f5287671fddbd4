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
    """Facts about a verified segment that its partition needs.

    Attributes:
        base_offset: The number that names its files.
        first_offset: Base offset of its first batch, -1 without batches.
        last_offset: Largest last offset, -1 without batches.
        size_bytes: Length of its .log file.
        end_position: Just past its last batch.
        tail: The content behind it.
        batches: Batches that were read.
        bad_batches: Number of batches with a wrong checksum.
        records: Records that the good ones count; legacy entries count as one.
        max_timestamp: Largest of all batches, -1 without any.
        has_producers: Whether an idempotent producer wrote here.
        epochs: Runs of batches of one leader epoch, in file order.
        transactions: Its facts about transactions.
        read_seconds: Time it took to read and check.
    """

    base_offset: int
    first_offset: int
    last_offset: int
    size_bytes: int
    end_position: int
    tail: TailKind
    batches: int
    bad_batches: int
    records: int
    max_timestamp: int
    has_producers: bool
    epochs: tuple[EpochRun, ...]
    transactions: SegmentTransactions
    read_seconds: float

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
