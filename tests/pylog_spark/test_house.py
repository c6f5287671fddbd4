"""What houses above upkeep add, and what is said where none is installed."""

import pytest

from pylog_spark import house
from pylog_spark.house import addition_for, additions, require_addition
from storage_core.errors import ConfigError


def test_without_a_house_what_needs_one_says_which_package_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(house, "installed_houses", lambda: ())
    assert list(additions("commands")) == []
    assert addition_for("operations", "heal") is None
    with pytest.raises(ConfigError, match=r"pylog_spark\.cluster") as refused:
        require_addition("diagnose_brokers", "a diagnosis of several brokers")
    assert "is not installed; a diagnosis of several brokers needs it" in str(refused.value)
