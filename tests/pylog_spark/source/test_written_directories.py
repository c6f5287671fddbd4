"""What other commands make of a directory that ``df.write`` wrote."""

from pathlib import Path

import pytest

from tests.storage_core.writing.writes import numbers_of, records_of, request_of, write


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of two writes; its batches are compressed."""
    path = tmp_path / "logs"
    for numbers in (range(400), range(400, 700)):
        request = request_of(
            path, config={"compression.type": "zstd"}, topic_ids={"t": "z7Bq0v9lTLWsqe1eqY2Bhg"}
        )
        write(request, records_of(numbers))
    return path


def test_verify_finds_nothing_wrong_with_it(directory, pylog):
    lines = pylog.rows("verify", directory, "--deep", "--engine", "local")
    codes = [line["code"] for line in lines if line["type"] == "finding"]
    assert codes == ["META_PROPERTIES_MISSING"]  # that makes it a broker's


@pytest.mark.thorough
def test_a_managed_root_takes_it_in(directory, pylog, tmp_path):
    managed = tmp_path / "managed"
    arguments = (directory, managed, "--sync-stopped", "--settle", "0s")
    pylog.rows("ingest", *arguments, "--engine", "local")
    assert numbers_of(managed) == list(range(700))


@pytest.mark.thorough
def test_it_is_recovered_and_retained_as_a_brokers_is(directory, pylog):
    """It has no cluster metadata: what needs no topic's configuration works, nothing is cut."""
    lines = pylog.rows("recover", directory, "--role", "broker", "--engine", "local")
    assert {line.get("truncated_bytes", 0) for line in lines} == {0}
    assert numbers_of(directory) == list(range(700))
    write(request_of(directory), records_of(range(700, 710)))
    assert numbers_of(directory) == list(range(710))
