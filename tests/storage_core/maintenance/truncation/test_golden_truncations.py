"""Logs that Kafka truncated, truncated again."""

import pytest

from tests.kit.golden_data import goldens
from tests.kit.golden_loading import problems_of


@pytest.mark.item("IDX-15", "CKP-12", "PRD-16")
@pytest.mark.parametrize("golden", goldens("truncate-*"), ids=lambda golden: golden.name)
def test_a_log_is_cut_at_an_offset_with_all_that_belongs_to_it(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []
