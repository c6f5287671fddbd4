"""A segment whose offsets lie further apart than it can say: split, then cleaned by a round."""

import json
import logging
import shutil

import pytest

from tests.kit.partition_views import data_records
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS
from tests.pylog_spark.overflowing_roots import FAR, overflowing_root
from tests.pylog_spark.tasks.pipeline import Pipeline


@pytest.mark.item("CMP-42")
@pytest.mark.parametrize("way", ["spread over tasks", "exchanged", "whole"])
def test_a_round_over_such_a_segment_splits_it_and_the_next_one_cleans(tmp_path, caplog, way):
    caplog.set_level(logging.INFO, "pylog_spark")  # for what counts the operations
    root = overflowing_root(tmp_path / "log")
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pipeline.allow_commits()
    if way == "spread over tasks":
        (row,) = pipeline.rewrite(pipeline.index())
        assert row["error_class"] == "OffsetOverflowError"
    elif way == "exchanged":
        (row,) = pipeline.exchange()
        assert row["error_class"] == "OffsetOverflowError"
    (split,) = pipeline.clean_whole()
    assert (split["was_split"], split["error_class"]) == (True, "OffsetOverflowError")
    assert split["next_offset"] is None
    assert any("RenameFile" in step["operation"] for step in json.loads(split["operations"]))
    directory = root.path / "t-0"
    assert [int(log.stem) for log in sorted(directory.glob("*.log"))] == [0, FAR, FAR + 9]
    assert [r.offset for r in data_records(directory)] == [0, 1, FAR, FAR + 7]

    shutil.rmtree(tmp_path / "pylog-scratch-log")
    again = Pipeline(root, FIRST_ROUNDS_MS)
    again.allow_commits()
    (row,) = again.clean_whole()
    assert (row["error"], row["was_split"], row["next_offset"]) == (None, None, FAR + 9)
    assert [r.offset for r in data_records(directory)] == [1, FAR, FAR + 7]
