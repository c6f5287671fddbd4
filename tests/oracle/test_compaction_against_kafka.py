"""Random logs, written and cleaned by Apache Kafka; cleaned by us from the same bytes."""

import pytest
from hypothesis import given

from tests.kit.compare import Exactness
from tests.oracle.ours import compare_round
from tests.oracle.random_logs import LogPlan, against_kafka, log_plans, scratch_folder
from tests.oracle.rounds import play

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


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
    with scratch_folder() as scratch:
        for played in play(plan, scratch):
            compare_round(played, exactness)
