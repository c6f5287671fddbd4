"""What a root is taken for, and what somebody is told who names another directory."""

from pathlib import Path
from threading import Barrier

import pytest

from storage_core.catalog.roles import Role
from storage_core.errors import ConfigError, StorageError
from storage_core.filenames import log_file
from storage_core.roots.open_root import LogRoot, MirrorRoot, check_log_directory, map_over_root
from storage_core.store import open_object_store
from storage_core.store.generations import create_root

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


def test_looks_at_a_root_on_an_object_store_answer_in_order():
    root = MirrorRoot(open_object_store("memory://looks/logs"))
    numbers = range(100)
    assert map_over_root(root, lambda number: number * number, numbers) == [n * n for n in numbers]
    assert map_over_root(root, str, ()) == []


def test_the_error_of_a_look_is_raised_when_no_other_look_runs_any_more():
    root = MirrorRoot(open_object_store("memory://looks/logs"))
    meeting = Barrier(3, timeout=60)

    def look(number: int) -> None:
        if number == 1:
            raise StorageError("looks", "the disk failed")
        meeting.wait(timeout=10)
        ended.append(number)

    ended: list[int] = []
    with pytest.raises(StorageError, match="the disk failed"):
        map_over_root(root, look, range(4))
    assert sorted(ended) == [0, 2, 3]


@pytest.mark.parametrize("place", ["memory://looks/managed", "folder"])
def test_a_managed_root_is_held_where_it_was_named(place, tmp_path):
    location = place if "://" in place else str(tmp_path / place)
    create_root(open_object_store(location), now_ms=5)
    given = LogRoot(location=location, role=Role.MANAGED, is_said=True)
    assert given.open().newest_write_ms() == 0
    with given.open().hold(run_id="run", mark_clean=True) as held:
        assert (held.location, held.access.root) == (location, location)
        assert given.open().newest_write_ms() > 0
