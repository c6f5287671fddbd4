"""Fixtures for the tests of stores."""

import sys

import pytest


@pytest.fixture
def hasty_threads():
    """Threads that take turns as often as they can, so that what they share is met half done."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
