"""What a purge takes from a broker's directory: when, and what it never touches."""

import os
from pathlib import Path

import pytest

from storage_core.commit import commit
from storage_core.commit.purge import plan_purge_directory, plan_purge_partition
from storage_core.errors import GuardRefusedError
from storage_core.store import LocalStore

UNIQUE = "0123456789abcdef0123456789abcdef"
DELAY = 60_000


def changed_ms(path: Path) -> int:
    facts = path.lstat()
    return max(facts.st_ctime_ns, facts.st_mtime_ns) // 1_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name in ("0.log", "0.log.deleted", "5.index.deleted", "7.checkpoint.deleted"):
        (directory / name).write_bytes(b"12345")
    # Its bytes are old: it is when it was renamed that counts.
    os.utime(directory / "0.log.deleted", ns=(0, 0))
    return directory


def test_deleted_files_go_when_their_delay_is_over_and_not_a_moment_before(partition):
    last = max(changed_ms(path) for path in partition.glob("*.deleted"))
    purge = plan_purge_partition(partition, now_ms=last + DELAY, delay_ms=DELAY)
    assert (purge.files, purge.size_bytes, purge.wait_ms) == (2, 10, None)
    first = min(changed_ms(path) for path in partition.glob("*.deleted"))
    early = plan_purge_partition(partition, now_ms=first + DELAY - 1, delay_ms=DELAY)
    assert (early.plans, early.files, early.wait_ms) == ((), 0, 1)
    (plan,) = purge.plans
    commit(plan, LocalStore(partition))
    # A KRaft snapshot on its way out is not the log's.
    assert {path.name for path in partition.iterdir()} == {"0.log", "7.checkpoint.deleted"}


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    directory = tmp_path / f"t-0.{UNIQUE}-delete"
    directory.mkdir()
    for name in ("0.log", "0.index", "leader-epoch-checkpoint"):
        (directory / name).write_bytes(b"12345")
    return directory


def test_the_directory_of_a_deleted_partition_goes_with_its_files(deleted):
    late = changed_ms(deleted) + DELAY
    assert plan_purge_directory(deleted, now_ms=late - 1, delay_ms=DELAY).wait_ms == 1
    purge = plan_purge_directory(deleted, now_ms=late, delay_ms=DELAY)
    assert (purge.files, purge.size_bytes) == (3, 15)
    (plan,) = purge.plans
    commit(plan, LocalStore(deleted))
    assert not deleted.exists()


@pytest.mark.parametrize("name", ["t-0", f"t-0.{UNIQUE}-stray", f"x.{UNIQUE}-delete", "home"])
def test_a_name_that_is_not_kafkas_for_it_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(GuardRefusedError, match="NOT_KAFKAS"):
        plan_purge_directory(tmp_path / name, now_ms=2**60, delay_ms=DELAY)


def test_a_link_or_anything_that_is_no_regular_file_is_refused(deleted, tmp_path):
    link = tmp_path / f"u-0.{UNIQUE}-delete"
    link.symlink_to(deleted)
    with pytest.raises(GuardRefusedError, match="a link or a file"):
        plan_purge_directory(link, now_ms=2**60, delay_ms=DELAY)
    (deleted / "0.timeindex").symlink_to("/etc/passwd")
    with pytest.raises(GuardRefusedError, match=r"0\.timeindex in it is no regular file"):
        plan_purge_directory(deleted, now_ms=2**60, delay_ms=DELAY)
    (deleted / "0.timeindex").unlink()
    (deleted / "folder").mkdir()
    with pytest.raises(GuardRefusedError, match="folder in it"):
        plan_purge_directory(deleted, now_ms=2**60, delay_ms=DELAY)
    assert len(list(deleted.iterdir())) == 4
