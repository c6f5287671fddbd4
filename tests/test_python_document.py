"""``docs/python.md``: its examples run, one after the other, on what a broker wrote."""

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.golden_data import Golden

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
ELSEWHERE = ("polars", "duckdb")  # of which this project needs neither


def run_examples(monkeypatch, tmp_path: Path, *packages: str) -> dict[str, Any]:
    """Run the examples that need nothing else than what is installed, and some packages."""
    root = Golden("broker-dir").unpack(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        if any(f"import {package}" in example for package in ELSEWHERE if package not in packages):
            continue
        code = example.replace("/var/lib/kafka", str(root))
        exec(compile(code, DOCUMENT.name, "exec"), names)  # noqa: S102 - the example is ours
    return names


def test_the_examples_run(monkeypatch, tmp_path, capsys):
    names = run_examples(monkeypatch, tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("['__cluster_metadata', '__consumer_offsets'")
    assert "10" in printed
    assert names["table"].num_rows == len(names["frame"]) == 1048
    assert pq.read_table(tmp_path / "events.parquet").equals(names["table"])
    assert names["since"].to_table().num_rows == 1048
    assert {row["key"] for row in names["one_key"].rows()} == {b"key-30"}


@pytest.mark.thorough
@pytest.mark.parametrize("package", ELSEWHERE)
def test_the_example_of_another_library_runs_where_that_is_installed(
    package: str, monkeypatch, tmp_path
):
    pytest.importorskip(package)
    run_examples(monkeypatch, tmp_path, package)
