"""Appends: the files that ours leave are those of Kafka's UnifiedLog."""

import os
import random

import pytest

from storage_core.formats.batch_v2 import Codec
from storage_core.testing.compare import Exactness, compare_partitions, read_tree
from tests.oracle.appends import BothLogs, RandomAppends, random_config

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

ROUNDS = int(os.environ.get("PYLOG_ORACLE_EXAMPLES", "12"))
STEPS = 60
ALL_CODECS = tuple(Codec)


def play(root, seed, *, recompresses, codecs):
    dice = random.Random(seed)
    config = random_config(dice, recompresses=recompresses)
    logs = BothLogs(root, config, recompresses=recompresses)
    plan = RandomAppends(logs, dice, codecs=codecs)
    for _ in range(STEPS):
        plan.step()
    logs.close()
    exactness = Exactness.RECORDS if recompresses else Exactness.BYTES
    differences = compare_partitions(
        read_tree(logs.theirs_at), read_tree(logs.ours_at), exactness
    )
    assert not differences, "\n".join([str(logs.settings), *map(str, differences)])
    return plan


@pytest.mark.item("APP-01", "APP-02", "APP-04", "APP-05", "APP-13", "APP-17", "APP-20", "PRD-10")
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_same_appends_leave_the_same_bytes(seed, tmp_path):
    play(tmp_path, seed, recompresses=False, codecs=(Codec.NONE,))


@pytest.mark.item("APP-05", "APP-06", "APP-10")
@pytest.mark.parametrize("seed", range(1000, 1000 + ROUNDS))
def test_compressed_batches_that_stay_as_they_came_leave_the_same_bytes(seed, tmp_path):
    play(tmp_path, seed, recompresses=False, codecs=ALL_CODECS)


@pytest.mark.item("APP-05", "APP-10")
@pytest.mark.parametrize("seed", range(2000, 2000 + ROUNDS))
def test_batches_that_are_compressed_anew_have_the_same_records(seed, tmp_path):
    play(tmp_path, seed, recompresses=True, codecs=ALL_CODECS)
