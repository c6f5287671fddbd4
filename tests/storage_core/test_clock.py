"""Times as Kafka counts them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from storage_core.clock import epoch_ms


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), 0, id="the epoch"),
        pytest.param(datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC), 1767323045006, id="whole"),
        pytest.param(datetime(2026, 1, 2, 3, 4, 5, 6001, tzinfo=UTC), 1767323045007, id="upwards"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, 999500, tzinfo=UTC), 0, id="before it"),
        pytest.param(
            datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0, id="another zone"
        ),
    ],
)
def test_a_time_is_the_first_millisecond_that_is_not_before_it(at: datetime, expected: int):
    assert epoch_ms(at) == expected
