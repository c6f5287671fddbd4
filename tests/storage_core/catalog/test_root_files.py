"""What a root is taken for, and what somebody is told who names another directory."""

from pathlib import Path

import pytest

from storage_core.catalog.root_files import check_log_directory
from storage_core.errors import ConfigError
from storage_core.filenames import log_file

UNIQUE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("a.b-c-0", "a.b-c"),
        (f"a.b-c-0.{UNIQUE}-delete", "a.b-c"),
        (f"a.b-c-0.{UNIQUE}-stray", "a.b-c"),
    ],
    ids=["a partition", "a deleted one", "a stray one"],
)
def test_the_directory_of_a_partition_is_refused_with_its_log_directory_and_topic(
    name: str, topic: str, tmp_path: Path
):
    directory = tmp_path / name
    directory.mkdir()
    (directory / log_file(0)).write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        check_log_directory(str(directory), directory)
    assert str(caught.value).endswith(f"{tmp_path} --topics {topic}")


def test_a_log_directory_may_be_named_as_a_partition_is(tmp_path: Path):
    root = tmp_path / "kafka-1"
    (root / "orders-0").mkdir(parents=True)
    check_log_directory(str(root), root)
