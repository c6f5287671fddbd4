"""Points and spans of time in words."""

import pytest

from storage_core.wording import span_text

_MINUTE = 60_000
_DAY = 1440 * _MINUTE


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 milliseconds"),
        (777, "777 milliseconds"),
        (61_500, "1 minute and 1 second"),
        (61 * _MINUTE + 59_999, "1 hour and 1 minute"),
        (7 * _DAY + 1, "7 days"),
        (-7 * _DAY, "7 days"),
        (2**63 - 1, "9223372036854775807 ms"),
    ],
)
def test_a_span_is_told_in_the_units_that_matter(span_ms: int, text: str):
    assert span_text(span_ms) == text
