"""`make bench`: records to Arrow beside the clients' decoders."""

import pytest

from tests.bench.bench_arrow import AIOKAFKA, KAFKA_PYTHON, measure
from tests.bench.figures import keep
from tests.bench.generated_partition import Size


@pytest.mark.bench
@pytest.mark.oracle
@pytest.mark.timeout(900)
# kafka-python reads its own schemas that way.
@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
def test_records_become_arrow_faster_than_a_client_decodes_them() -> None:
    figure = measure(records=Size().records, rounds=8)
    print("", figure.line(), sep="\n")  # noqa: T201 - the report is what bench is for
    keep("arrow", [figure])
    assert figure.ratio(AIOKAFKA) > 1.5
    assert figure.ratio(KAFKA_PYTHON) > 15
