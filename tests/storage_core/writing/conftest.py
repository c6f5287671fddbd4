"""Writes without the lock, for tests of what is done under it: to take it starts a process."""

import pytest

from storage_core.writing import publication
from tests.storage_core.writing.writes import NoLock


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "LogDirectoryLock", NoLock)
