"""``docs/writing.md``: its example runs, and Kafka's rules hold of what it writes."""

import re
from pathlib import Path

import pytest

from storage_core import kafka_log
from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.log_loader import load_log
from storage_core.store.local import LocalStore
from tests.kit.builders import SOME_TIME_MS
from tests.kit.decode import decode_segment

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "writing.md"


def test_the_first_example_writes_what_is_read_back(tmp_path, monkeypatch, capsys):
    example, _ = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, DOCUMENT.name, "exec"), {})  # noqa: S102 - the example is ours
    assert capsys.readouterr().out == "3\n"
    values = kafka_log.open_logs("restored").read("orders").to_table()["value"].to_pylist()
    assert values == [b"created", b"created", None]


@pytest.mark.thorough
def test_the_example_writes_a_log_that_loads(tmp_path, monkeypatch, capsys):
    _, example = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, DOCUMENT.name, "exec"), {})  # noqa: S102 - the example is ours
    assert capsys.readouterr().out == "0 2\n"
    store = LocalStore(tmp_path / "restored" / "orders-0")
    loaded = load_log(store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=SOME_TIME_MS)
    assert (loaded.log_end_offset, loaded.operations) == (3, ())
    [batch] = decode_segment((store.directory / loaded.active_segment.log_file).read_bytes())[0]
    assert [(record.key, record.value) for record in batch.records] == [
        (b"4711", b"created"),
        (b"4712", b"created"),
        (b"4711", None),
    ]
