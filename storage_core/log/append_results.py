"""What an append is asked for and what becomes of it, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppendInfo:
    """What became of an append.

    Attributes:
        first_offset: Of its first record; of legacy entries that bring offsets, None. -1 if
            nothing was appended.
        last_offset: Of its last record, -1 if nothing was appended.
        max_timestamp: Largest timestamp, NO_TIMESTAMP for none.
        append_time_ms: The broker's time where records get it, else NO_TIMESTAMP.
        valid_bytes: Bytes of the whole batches that were found.
        is_duplicate: Whether it had been written before: then nothing was.
    """

    first_offset: int | None
    last_offset: int
    max_timestamp: int
    append_time_ms: int
    valid_bytes: int
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Who writes columns, if it is a producer with an id.

    Attributes:
        producer_id: Its id.
        producer_epoch: Its epoch.
        base_sequence: Sequence of the first record; None for the one that the log expects.
        is_transactional: Whether the records belong to a transaction.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int | None = None
    is_transactional: bool = False
