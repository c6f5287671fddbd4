import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylog_spark.options import Strategy
from pylog_spark.run.planning import (
    ITEM_OVERHEAD_BYTES,
    MAP_ENTRY_BYTES,
    Demand,
    MapBudgets,
    WorkItem,
    WorkUnit,
    broadcast_budget,
    choose_buckets,
    choose_strategy,
    choose_unit_bytes,
    count_busy,
    count_look_tasks,
    cut_beside,
    estimate_map_bytes,
    level_units,
    pack_units,
    plan_rounds,
)

MIB = 1024 * 1024


def item(number: int, size_bytes: int) -> WorkItem[int]:
    return WorkItem(value=number, size_bytes=size_bytes)


def strategy(
    *,
    asked: Strategy = Strategy.AUTO,
    is_one_unit: bool = False,
    map_bytes: int = 10 * MIB,
    broadcast_bytes: int = 32 * MIB,
    can_broadcast: bool = True,
    slots: int = 2,
    is_bounded: bool = False,
) -> Strategy:
    return choose_strategy(
        asked=asked,
        is_one_unit=is_one_unit,
        map_bytes=map_bytes,
        budgets=MapBudgets(
            broadcast_bytes=broadcast_bytes,
            task_bytes=1024 * MIB,
            can_broadcast=can_broadcast,
            slots=slots,
        ),
        is_bounded=is_bounded,
    )


HALF = 32 * MIB - ITEM_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("sizes", "units"),
    [
        pytest.param([], [], id="nothing to do"),
        pytest.param([MIB, 900 * MIB, MIB], [[1], [0, 2]], id="a big one first, by itself"),
        pytest.param([64 * MIB - ITEM_OVERHEAD_BYTES, 0], [[0], [1]], id="one of exactly the unit"),
        pytest.param([HALF, HALF], [[0, 1]], id="two that just fit"),
        pytest.param([HALF, HALF + 1], [[1], [0]], id="two that just do not fit"),
    ],
)
def test_items_share_units_as_far_as_they_fit(sizes, units):
    items = [item(number, size) for number, size in enumerate(sizes)]
    assert [unit.values for unit in pack_units(items, unit_bytes=64 * MIB)] == units


def test_empty_items_are_spread_for_what_opening_them_costs():
    units = pack_units([item(n, 0) for n in range(1000)], unit_bytes=64 * MIB)
    assert len(units) == 1000 * ITEM_OVERHEAD_BYTES // (64 * MIB) + 1


@given(
    sizes=st.lists(st.integers(0, 200 * MIB), max_size=60),
    unit_bytes=st.integers(ITEM_OVERHEAD_BYTES, 100 * MIB),
)
def test_packing_keeps_every_item_and_respects_the_bound(sizes, unit_bytes):
    items = [item(number, size) for number, size in enumerate(sizes)]
    units = pack_units(items, unit_bytes=unit_bytes)

    packed = sorted((i for unit in units for i in unit.items), key=lambda i: i.value)
    costs = [unit.cost_bytes for unit in units]
    assert packed == items
    assert all(u.cost_bytes <= unit_bytes for u in units if len(u.items) > 1)
    assert costs == sorted(costs, reverse=True)
    assert all(first + second > unit_bytes for first, second in itertools.pairwise(costs))


def test_packing_does_not_depend_on_the_order_of_the_items():
    items = [item(n, (n * 7919) % (5 * MIB)) for n in range(40)]
    assert pack_units(items, unit_bytes=8 * MIB) == pack_units(reversed(items), unit_bytes=8 * MIB)


@pytest.mark.parametrize(
    ("items", "slots", "before", "after"),
    [
        pytest.param(40, 2, [6] * 6 + [4], [5] * 8, id="equal items, the last unit nearly empty"),
        pytest.param(12, 2, [2] * 6, [2] * 6, id="a multiple already"),
        pytest.param(6, 8, [1] * 6, [1] * 6, id="slots for all"),
        pytest.param(5, 4, [1] * 5, [1] * 5, id="no unit would get shorter"),
    ],
)
def test_units_are_dealt_out_so_that_no_slot_waits_for_the_last(items, slots, before, after):
    sizes = [item(number, 40 * MIB) for number in range(items)]
    unit_bytes = choose_unit_bytes(
        items * 40 * MIB, slots=slots, least_bytes=MIB, most_bytes=1024 * MIB
    )
    # Each item has its charge, too.
    units = pack_units(sizes, unit_bytes=unit_bytes + 2 * ITEM_OVERHEAD_BYTES)
    assert [len(unit.items) for unit in units] == before
    assert [len(unit.items) for unit in level_units(units, slots=slots)] == after


@given(
    sizes=st.lists(st.integers(0, 200 * MIB), max_size=60),
    slots=st.integers(1, 9),
)
def test_levelled_units_keep_every_item_and_get_no_longer(sizes, slots):
    items = [item(number, size) for number, size in enumerate(sizes)]
    units = pack_units(items, unit_bytes=64 * MIB)
    level = level_units(units, slots=slots)
    assert sorted((i for unit in level for i in unit.items), key=lambda i: i.value) == items
    costs = [unit.cost_bytes for unit in level]
    assert costs == sorted(costs, reverse=True)
    assert max(costs, default=0) <= max((unit.cost_bytes for unit in units), default=0)
    assert level == units or len(level) % slots == 0


def rounds_of(map_bytes: list[int], *, budget: int = 10, most: int = 9) -> list[list[int]]:
    return plan_rounds(
        [Demand(map_bytes=size, disk_bytes=0) for size in map_bytes],
        budget=Demand(map_bytes=budget, disk_bytes=0),
        most_partitions=most,
    )


@pytest.mark.parametrize(
    ("sizes", "busy"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([1024], 1, id="one"),
        pytest.param([1024, 0], 1, id="one beside an empty one"),
        pytest.param([1024, 800], 2, id="two of about a size"),
        pytest.param([512, 256, 256], 2, id="one that takes as long as two"),
    ],
)
def test_units_are_busy_together_as_far_as_they_take_as_long(sizes, busy):
    items = [item(number, size * MIB) for number, size in enumerate(sizes)]
    assert count_busy([WorkUnit(items=(each,)) for each in items]) == busy


@pytest.mark.parametrize(
    ("sizes", "most", "rounds"),
    [
        pytest.param([], 9, [], id="no partitions"),
        pytest.param([4, 6, 1], 9, [[0, 1], [2]], id="up to exactly the budget"),
        pytest.param([4, 9, 4], 9, [[0], [1], [2]], id="urgency, though a later one would fit"),
        pytest.param([1, 11, 1], 9, [[0], [1], [2]], id="a map above the budget"),
        pytest.param([0] * 5, 2, [[0, 1], [2, 3], [4]], id="a limit of partitions"),
    ],
)
def test_rounds_are_filled_in_the_order_of_urgency(sizes, most, rounds):
    assert rounds_of(sizes, most=most) == rounds


def test_a_round_fits_on_the_disk():
    demands = [Demand(map_bytes=1, disk_bytes=size) for size in (60, 40, 1, 101)]
    budget = Demand(map_bytes=10, disk_bytes=100)
    assert plan_rounds(demands, budget=budget, most_partitions=9) == [[0, 1], [2], [3]]


def test_a_round_fits_on_each_disk_and_a_full_one_makes_no_other_wait():
    demands = [Demand(disk_bytes=size) for size in (60, 10, 40, 60, 1, 61)]
    rounds = plan_rounds(
        demands,
        budget=Demand(disk_bytes=1000),
        most_partitions=9,
        disks=["a", "b", "a", "without limit", "b", "b"],
        room={"a": 100, "b": 11},
    )
    assert rounds == [[0, 1, 2, 3, 4], [5]]


def test_a_wave_has_limits_of_bytes_and_of_tasks():
    demands = [
        Demand(map_bytes=0, disk_bytes=0, read_bytes=read, tasks=tasks)
        for read, tasks in ((60, 1), (40, 1), (1, 5), (1, 5), (500, 1), (1, 1))
    ]
    budget = Demand(map_bytes=0, disk_bytes=0, read_bytes=100, tasks=9)
    rounds = plan_rounds(demands, budget=budget, most_partitions=9)
    assert rounds == [[0, 1], [2], [3], [4], [5]]


@given(
    sizes=st.lists(st.integers(0, 20), max_size=50),
    budget=st.integers(0, 40),
    most=st.integers(1, 7),
)
def test_rounds_hold_every_partition_once_and_stay_within_the_budget(sizes, budget, most):
    rounds = rounds_of(sizes, budget=budget, most=most)
    assert [position for members in rounds for position in members] == list(range(len(sizes)))
    for members in rounds:
        assert 0 < len(members) <= most
        assert len(members) == 1 or sum(sizes[position] for position in members) <= budget


def test_what_is_one_unit_is_cleaned_whole_unless_no_task_could_hold_its_map():
    assert strategy(is_one_unit=True, map_bytes=1024 * MIB) is Strategy.WHOLE
    assert strategy(is_one_unit=True, map_bytes=1024 * MIB + 1) is Strategy.SHUFFLE
    assert strategy(is_one_unit=False) is Strategy.BROADCAST


def test_a_map_above_the_budget_is_not_broadcast():
    def asked(map_bytes: int) -> Strategy:
        return strategy(map_bytes=map_bytes, asked=Strategy.BROADCAST)

    assert [asked(32 * MIB), asked(32 * MIB + 1)] == [Strategy.BROADCAST, Strategy.SHUFFLE]


def test_what_is_broadcast_is_small_beside_the_heap_that_is_there():
    assert broadcast_budget(32 * MIB, heap_bytes=1024 * MIB) == 32 * MIB
    assert broadcast_budget(256 * MIB, heap_bytes=1024 * MIB) == 32 * MIB
    assert broadcast_budget(32 * MIB, heap_bytes=512 * MIB) == 16 * MIB


def test_who_looks_at_partitions_are_tasks_by_their_number_up_to_some_for_each_slot():
    assert [count_look_tasks(rows, slots=2) for rows in (0, 16, 17, 100, 10**6)] == [1, 1, 2, 7, 8]
    assert count_look_tasks(100, slots=200) == 7
    assert count_look_tasks(None, slots=2) == 8


def test_with_many_slots_no_large_map_waits_for_one_task_that_merges():
    def way(slots: int, map_bytes: int, asked: Strategy = Strategy.AUTO) -> Strategy:
        return strategy(slots=slots, map_bytes=map_bytes, asked=asked, broadcast_bytes=128 * MIB)

    assert way(7, 65 * MIB) is Strategy.BROADCAST
    assert way(8, 65 * MIB) is Strategy.SHUFFLE
    assert way(8, 64 * MIB) is Strategy.BROADCAST
    assert way(8, 65 * MIB, Strategy.BROADCAST) is Strategy.BROADCAST


def test_small_partitions_beside_big_ones_make_jobs_of_equal_cost():
    assert cut_beside([], slots=2) == []
    assert cut_beside([5] * 3, slots=2) == [3]
    assert cut_beside([5] * 16, slots=2) == [4, 4, 4, 4]
    assert cut_beside([1] * 8 + [8] * 8, slots=2) == [10, 2, 2, 2]
    assert len(cut_beside([1] * 500, slots=2)) == 16
    assert len(cut_beside([1] * 500, slots=32)) == 7
    assert sum(cut_beside(list(range(500)), slots=2)) == 500


def test_a_session_without_broadcasts_shuffles_what_one_task_does_not_clean():
    assert strategy(can_broadcast=False) is Strategy.SHUFFLE
    assert strategy(can_broadcast=False, asked=Strategy.BROADCAST) is Strategy.SHUFFLE
    assert strategy(can_broadcast=False, is_one_unit=True) is Strategy.WHOLE


def test_a_round_with_a_limit_of_keys_is_one_tasks_work():
    assert {strategy(asked=asked, is_bounded=True) for asked in Strategy} == {Strategy.WHOLE}


@pytest.mark.parametrize("asked", [Strategy.WHOLE, Strategy.BROADCAST, Strategy.SHUFFLE])
def test_the_caller_may_ask_for_a_strategy(asked):
    assert strategy(asked=asked) is asked
    assert strategy(asked=asked, is_one_unit=True) is asked


@pytest.mark.parametrize("slots", [2, 8])
@pytest.mark.parametrize("is_one_unit", [True, False])
@pytest.mark.parametrize("map_mib", [1, 32, 33, 65, 1024, 1025])
def test_the_files_of_former_releases_mean_auto(slots, is_one_unit, map_mib):
    case = {"slots": slots, "is_one_unit": is_one_unit, "map_bytes": map_mib * MIB}
    assert strategy(asked=Strategy.FILES, **case) is strategy(asked=Strategy.AUTO, **case)


def test_a_shuffle_can_be_asked_for_at_any_size():
    assert strategy(asked=Strategy.SHUFFLE, map_bytes=0) is Strategy.SHUFFLE


def test_keys_are_dealt_into_buckets_that_fit_a_task_and_use_all_slots():
    def buckets(entry_bytes: int) -> int:
        return choose_buckets(entry_bytes=entry_bytes, bucket_bytes=32 * MIB, slots=8)

    assert [buckets(0), buckets(MIB - 1), buckets(3 * MIB)] == [1, 1, 3]
    assert [buckets(256 * MIB), buckets(256 * MIB + 1), buckets(3200 * MIB)] == [8, 9, 100]


@pytest.mark.parametrize(
    ("offset_span", "dirty_bytes", "capacity", "expected"),
    [
        pytest.param(80, 10**9, None, 80 * 24 + 10, id="an entry for each offset at most"),
        pytest.param(2**62, 16_000, None, 1000 * MAP_ENTRY_BYTES + 125, id="gaps of billions"),
        pytest.param(800, 10**9, 10, 240 + 100, id="a capacity bounds keys, not the bitmap"),
    ],
)
def test_a_map_is_as_large_as_its_keys(offset_span, dirty_bytes, capacity, expected):
    found = estimate_map_bytes(offset_span=offset_span, dirty_bytes=dirty_bytes, capacity=capacity)
    assert found == expected


def test_units_are_a_third_of_a_slots_share_within_bounds():
    bounds = {"least_bytes": MIB, "most_bytes": 512 * MIB}
    assert choose_unit_bytes(1200 * MIB, slots=4, **bounds) == 100 * MIB
    assert choose_unit_bytes(12, slots=4, **bounds) == MIB
    assert choose_unit_bytes(10**15, slots=4, **bounds) == 512 * MIB
    assert choose_unit_bytes(6 * MIB, slots=0, **bounds) == 2 * MIB


@given(
    st.lists(st.tuples(st.integers(0, 64 * MIB), st.sampled_from([None, 1, 2, 3])), max_size=60),
    st.integers(1, 4),
)
def test_what_lies_on_a_disk_is_in_so_many_units_as_may_be_there(drawn, per_disk: int):
    items = [
        WorkItem(value=number, size_bytes=size, disk=disk)
        for number, (size, disk) in enumerate(drawn)
    ]
    units = pack_units(items, unit_bytes=4 * MIB, per_disk=per_disk)
    packed = [item for unit in units for item in unit.items]
    assert sorted(packed, key=lambda item: item.value) == items
    costs = [unit.cost_bytes for unit in units]
    assert costs == sorted(costs, reverse=True)
    for disk in (1, 2, 3):
        there = [unit for unit in units if any(item.disk == disk for item in unit.items)]
        assert all({item.disk for item in unit.items} == {disk} for unit in there)
        of_disk = [item for item in items if item.disk == disk]
        assert len(there) == min(per_disk, len(of_disk))
        if len(there) > 1:
            # Dealt out evenly: without its last item, no unit has more to do than any other.
            least = min(unit.cost_bytes for unit in there)
            for unit in there:
                assert unit.cost_bytes - unit.items[-1].size_bytes - ITEM_OVERHEAD_BYTES <= least
    elsewhere = [replace(item, disk=None) for item in items if item.disk is None]
    alone = pack_units(elsewhere, unit_bytes=4 * MIB)
    assert [unit for unit in units if unit.items[0].disk is None] == alone


def test_without_a_limit_a_disk_makes_no_difference():
    items = [WorkItem(value=n, size_bytes=n * MIB, disk=n % 2) for n in range(9)]
    plain = pack_units([replace(item, disk=None) for item in items], unit_bytes=4 * MIB)
    packed = pack_units(items, unit_bytes=4 * MIB)
    assert [unit.values for unit in packed] == [unit.values for unit in plain]
