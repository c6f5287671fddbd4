"""Random logs, written and cleaned by Apache Kafka; cleaned by us from the same bytes.

``PYLOG_ORACLE_EXAMPLES`` says how many logs of each kind; the default keeps ``make test`` short.
They are the same in every run; ``PYLOG_ORACLE_RANDOM=1`` has Hypothesis look for new ones, and
``PYLOG_ORACLE_SHRINK=1`` make a failing one small, which takes minutes.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.kit.compare import Exactness
from tests.oracle.comparison import compare_round
from tests.oracle.random_logs import LogPlan, log_plans
from tests.oracle.rounds import play

EXAMPLES = int(os.environ.get("PYLOG_ORACLE_EXAMPLES", "60"))
FIXED = os.environ.get("PYLOG_ORACLE_RANDOM", "0") != "1"
SHRINK = os.environ.get("PYLOG_ORACLE_SHRINK", "0") == "1"
# Both sides sync all the time; in memory that costs nothing.
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - only a parent

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]
against_kafka = settings(
    max_examples=EXAMPLES,
    derandomize=FIXED,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
)


@pytest.mark.item("CMP-13", "CMP-14", "CMP-15", "CMP-16", "CMP-17", "CMP-18", "CMP-19", "CMP-20")
@pytest.mark.item("CMP-22", "CMP-23", "CMP-24", "CMP-25", "CMP-26", "CMP-27", "CMP-28", "CMP-30")
@pytest.mark.item("CMP-32", "CMP-38")
@against_kafka
@given(plan=log_plans(compressed=False))
def test_uncompressed_logs_are_cleaned_byte_for_byte_as_kafka_does(plan: LogPlan) -> None:
    compare_every_round(plan, Exactness.BYTES)


@pytest.mark.thorough
@pytest.mark.item("CMP-29", "CMP-33")
@against_kafka
@given(plan=log_plans(compressed=True))
def test_compressed_logs_are_cleaned_record_for_record_as_kafka_does(plan: LogPlan) -> None:
    compare_every_round(plan, Exactness.RECORDS)


def compare_every_round(plan: LogPlan, exactness: Exactness) -> None:
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=SCRATCH) as scratch:
        for played in play(plan, Path(scratch)):
            compare_round(played, exactness)
