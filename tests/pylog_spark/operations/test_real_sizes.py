"""Partitions of many keys: no cell of any plan is large, and the bytes are the same."""

import pytest

from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.verify.driver import verify
from pylog_spark.options import Strategy, Tuning
from pylog_spark.tasks.message import MOST_CELL_BYTES
from tests.kit.compare import read_tree
from tests.pylog_spark.large_partitions import MANY_KEYS, MIB, large_root
from tests.pylog_spark.operations.cell_watch import largest_of, watch_cells

pytestmark = pytest.mark.spark

NAME = f"{MANY_KEYS.topic}-0"


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_no_plan_has_a_cell_above_eight_megabytes_and_all_strategies_leave_the_same(
    spark, tmp_path, monkeypatch
):
    """Half a million keys a segment travelled as one cell of 12 MB, and their map as one of 24."""
    watch_cells(monkeypatch, tmp_path / "cells")
    made = large_root(tmp_path / "log")
    (made.path / ".kafka_cleanshutdown").unlink()
    # A wave of one partition with its scans apart; then both passes in each way.
    apart = Tuning(unit_min_bytes=MIB, unit_max_bytes=4 * MIB)
    options = made.options(MANY_KEYS.now_ms, tuning=apart)
    assert recover(spark, [made.path], options).exit_code == 0
    trees = {}
    for strategy in (Strategy.WHOLE, Strategy.BROADCAST, Strategy.SHUFFLE):
        root = made.copy(tmp_path / strategy.value)
        report = compact(spark, [root.path], options, strategy=strategy)
        assert report.results["status"].to_pylist() == ["done"]
        trees[strategy] = read_tree(root.path / NAME)
    assert verify(spark, [root.path], options).exit_code == 0
    assert trees[Strategy.WHOLE] == trees[Strategy.BROADCAST]
    assert trees[Strategy.WHOLE] == trees[Strategy.SHUFFLE]
    assert 0 < largest_of(tmp_path / "cells") <= MOST_CELL_BYTES
