"""Files that share a JVM are one unit of work, and come first."""

from types import SimpleNamespace

import pytest

from tests.kit.shared_jvms import SharedJvms, put_sharing_files_first

TESTS = {
    "a.py::one": [],
    "b.py::of_kafka": ["kafka_jvm"],
    "c.py::of_spark": ["tmp_path", "spark"],
    "c.py::two": [],
    "d.py::three": [],
    "e.py::of_spark": ["spark", "kafka_jvm"],
}


@pytest.fixture
def config():
    kept = {}
    cache = SimpleNamespace(set=kept.__setitem__, get=kept.get)
    return SimpleNamespace(cache=cache)


def test_files_that_share_a_jvm_are_one_unit_and_come_first(config, monkeypatch):
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: [1, 2])
    items = [SimpleNamespace(nodeid=name, fixturenames=uses) for name, uses in TESTS.items()]
    put_sharing_files_first(config, items)
    scheduler = SharedJvms(config)
    units = {}
    for item in items:
        units.setdefault(scheduler._split_scope(item.nodeid), []).append(item.nodeid)
    assert list(units.items()) == [
        ("spark", ["c.py::of_spark", "c.py::two", "e.py::of_spark"]),
        ("kafka_jvm", ["b.py::of_kafka"]),
        ("a.py", ["a.py::one"]),
        ("d.py", ["d.py::three"]),
    ]
