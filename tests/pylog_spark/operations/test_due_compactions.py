"""How partitions that are due are cleaned, by their sizes and those of all others."""

from dataclasses import replace

import pyarrow as pa
import pytest

from pylog_spark.operations.compact.pass_stages import CompactionLimits, find_due_compactions
from pylog_spark.options import Strategy
from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import PLAN

MIB = 1 << 20
LIMITS = CompactionLimits(
    least_unit_bytes=8 * MIB,
    most_unit_bytes=1024 * MIB,
    budget_bytes=2**30,
    slots=2,
    can_broadcast=True,
    max_keys=None,
)


def plans(*sizes: int, status: Status = Status.PLANNED) -> pa.Table:
    rows = [
        {
            "root": "/log",
            "topic": "t",
            "partition": number,
            "directory": f"/log/t-{number}",
            "status": status,
            "reason": None if status is Status.PLANNED else Reason.NOTHING_TO_CLEAN,
            "first_dirty_offset": 0,
            "first_uncleanable_offset": 1000,
            "cleanable_bytes": size,
            "peak_extra_bytes": size,
            "segment_bytes": [size // 2, size - size // 2],
            "plan": b"{}",
            "log_start_checkpoint": 0,
        }
        for number, size in enumerate(sizes)
    ]
    return pa.Table.from_batches([rows_to_batch(PLAN, rows)])


def strategies(table: pa.Table, limits: CompactionLimits = LIMITS) -> list[Strategy]:
    found = find_due_compactions(table, limits)
    return [each.strategy for each in found]


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        pytest.param([40 * MIB], [0], id="alone"),
        pytest.param([8 * MIB], [], id="alone, and small"),
        pytest.param([41 * MIB, 40 * MIB], [0], id="above a slot's share"),
        pytest.param([40 * MIB] * 2, [], id="a slot's share"),
        pytest.param([40 * MIB] * 5, [], id="less than a slot's share"),
        pytest.param([400 * MIB, *[4 * MIB] * 50], [0], id="one that outlasts the others"),
        pytest.param([2000 * MIB] * 20, range(20), id="above what a retry may cost"),
    ],
)
def test_a_partition_is_cut_up_only_where_all_that_is_due_leaves_slots_idle(sizes, cut):
    chosen = strategies(plans(*sizes))
    assert [n for n, way in enumerate(chosen) if way is Strategy.BROADCAST] == list(cut)
    assert {way for n, way in enumerate(chosen) if n not in cut} <= {Strategy.WHOLE}


@pytest.mark.parametrize(
    ("threads", "slots", "way"),
    [
        pytest.param(4, 4, Strategy.WHOLE, id="threads on all slots"),
        pytest.param(2, 4, Strategy.BROADCAST, id="other slots would be idle"),
        pytest.param(8, 8, Strategy.BROADCAST, id="more threads than Python keeps at work"),
    ],
)
def test_a_partition_alone_is_cleaned_by_threads_on_all_slots(threads, slots, way):
    limits = replace(LIMITS, slots=slots, lone_threads=threads)
    skipped = plans(40 * MIB, status=Status.SKIPPED)
    assert strategies(pa.concat_tables([skipped, plans(2000 * MIB)]), limits) == [way]
    assert Strategy.BROADCAST in strategies(plans(2000 * MIB, MIB), limits)


def test_what_is_not_due_fills_no_slot():
    skipped = plans(*[40 * MIB] * 20, status=Status.SKIPPED)
    assert strategies(pa.concat_tables([skipped, plans(40 * MIB)])) == [Strategy.BROADCAST]
    assert strategies(skipped) == []
