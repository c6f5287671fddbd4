"""What the owner of a log directory may put there to make another user's job work for them.

Each of these once read, wrote, gave away or deleted what the directory's owner could not have
touched, or never ended. ``docs/security.md`` says what is promised, and names these tests.
"""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pylog_spark.cli.partition import named_log_directory, named_partition_directory
from storage_core.catalog.cluster_metadata import read_cluster_metadata
from storage_core.catalog.off_switch import read_off_switch
from storage_core.checkpoint.lock import LogDirectoryLock, query_lock
from storage_core.commit.purge import plan_purge_partition
from storage_core.commit.scratch import create_scratch, find_claims, sweep_scratch
from storage_core.errors import ConfigError, PylogError, StorageError
from storage_core.filenames import log_file
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import locate_directory
from storage_core.store.garbage import delete_leftovers, find_leftovers
from storage_core.store.local import LocalStore
from storage_core.store.local_objects import TEMPORARY_FOLDER, LocalObjectStore
from storage_core.store.open_objects import open_object_store
from tests.kit.one_partition import observe_log_directory
from tests.storage_core.maintenance.recovery.test_plan import damage_batch, write_log
from tests.storage_core.maintenance.recovery.test_salvage import salvage_of

KAFKA_USER, KAFKA_GROUP = 1234, 4321
META = b"version=1\ncluster.id=c\nnode.id=1\n"
LOG = log_file(0)
SECRET = b"root:$6$secret"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has more rights than others")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log directory of the broker's user, with one partition."""
    root = tmp_path / "kafka"
    write_log(root / "t-0", 0)
    (root / "meta.properties").write_bytes(META)
    if os.geteuid() == 0:
        for path in (root, root / "t-0", root / "t-0" / LOG):
            os.chown(path, KAFKA_USER, KAFKA_GROUP)
    return root


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that only this process's user may read."""
    path = tmp_path / "shadow"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


def facts(path: Path) -> tuple[bytes, int, int, int]:
    found = path.stat()
    return path.read_bytes(), found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


READS = {
    "ranged read": lambda root: LocalStore(root / "t-0").open_file(LOG),
    "whole read": lambda root: LocalStore(root / "t-0").read_file(LOG, limit_bytes=99),
    "copy": lambda root: LocalStore(root / "t-0").copy_range(LOG, 0, 4, "9.log", modified_ms=1),
    "cut": lambda root: LocalStore(root / "t-0").truncate(LOG, 1),
    "creation": lambda root: LocalStore(root / "t-0").create_empty(LOG),
    "promotion": lambda root: LocalStore(root / "t-0").promote(str(root / "t-0" / LOG), "9.log"),
    "trash": lambda root: LocalStore(root / "t-0").keep(
        LOG, str(root.parent / "trash" / LOG), is_copy=True
    ),
    "sync": lambda root: LocalStore(root / "t-0").sync_file(LOG),
    "managed object": lambda root: LocalObjectStore(root).get("t-0/" + LOG),
    "part of a managed object": lambda root: LocalObjectStore(root).get_range(f"t-0/{LOG}", 0, 4),
    "upload": lambda root: LocalObjectStore(root.parent / "m").put_file("k", f"{root}/t-0/{LOG}"),
}


@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_a_link_is_not_opened(root, secret, read):
    (root / "t-0" / LOG).unlink()
    (root / "t-0" / LOG).symlink_to(secret)
    before = facts(secret)
    with pytest.raises(StorageError, match="is a link, expected a file"):
        READS[read](root)
    assert facts(secret) == before
    assert not list(root.parent.rglob("trash/*"))


@as_root
@pytest.mark.parametrize("read", READS)
def test_another_users_file_under_a_second_name_is_not_opened(root, secret, read):
    """Where the kernel lets everybody link to everything (fs.protected_hardlinks=0)."""
    (root / "t-0" / LOG).unlink()
    os.link(secret, root / "t-0" / LOG)
    before = facts(secret)
    with pytest.raises(StorageError, match="may have given another user's file a name here"):
        READS[read](root)
    assert facts(secret) == before


@pytest.mark.parametrize("read", READS)
def test_a_fifo_is_refused_and_not_waited_for(root, read):
    (root / "t-0" / LOG).unlink()
    os.mkfifo(root / "t-0" / LOG)
    with pytest.raises(StorageError, match="is a FIFO, expected a regular file"):
        READS[read](root)


@pytest.mark.parametrize("read", READS)
def test_a_partition_that_is_a_link_leads_nowhere(root, tmp_path, read):
    """It could lead into another log directory, which a broker has locked."""
    other = tmp_path / "other"
    (root / "t-0").rename(other)
    (root / "t-0").symlink_to(other)
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        READS[read](root)
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before


def test_a_partition_that_is_a_link_is_named_and_not_left_out(root, tmp_path):
    (root / "linked-0").symlink_to(write_log(tmp_path / "other" / "linked-0", 0))
    state = observe_log_directory(root)
    (entry,) = [entry for entry in state.entries if entry.name == "linked-0"]
    assert "is a link, expected a directory" in entry.problem
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        LocalStore(root / "linked-0").list_files()
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        plan_purge_partition(root / "linked-0", now_ms=1 << 60, delay_ms=0)


def test_a_link_that_leads_in_circles_hides_nobody_elses_partition(root):
    (root / "circle").symlink_to("circle")
    (root / "broken").symlink_to("nowhere")
    (root / "through-0").symlink_to("meta.properties/t-0")
    assert "t-0" in BrokerRoot(root).directories()
    assert "circle" not in BrokerRoot(root).directories()


@pytest.mark.parametrize("name", [LOG, "leader-epoch-checkpoint", "partition.metadata"])
def test_a_log_with_a_linked_file_is_refused_and_not_loaded_without_it(root, secret, name):
    (root / "t-0" / name).unlink(missing_ok=True)
    (root / "t-0" / name).symlink_to(secret)
    with pytest.raises(StorageError, match=rf"{name}.*is a link, expected a file"):
        LocalStore(root / "t-0").list_files()
    with pytest.raises(StorageError, match=rf"{name}.*is a link, expected a file"):
        list(LocalObjectStore(root).list_folder("t-0/"))


ROOT_FILES = {
    "meta.properties": observe_log_directory,
    "pylog-off": read_off_switch,
    "recovery-point-offset-checkpoint": lambda root: BrokerRoot(root).read(
        "recovery-point-offset-checkpoint", limit_bytes=1 << 20
    ),
}


@pytest.mark.parametrize("name", ROOT_FILES)
@pytest.mark.parametrize("kind", ["link", "fifo", "second name"])
def test_small_files_of_a_root_quote_nobody_elses(root, secret, name, kind):
    path = root / name
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    elif os.geteuid() == 0:
        os.link(secret, path)
    else:
        pytest.skip("one's own files one may quote")
    with pytest.raises(PylogError) as raised:
        ROOT_FILES[name](root)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_the_clusters_metadata_is_not_read_from_elsewhere(root, secret, kind):
    directory = root / "__cluster_metadata-0"
    directory.mkdir()
    if kind == "link":
        (directory / LOG).symlink_to(secret)
    else:
        (directory / "segments").mkdir()
        directory.rename(root / "elsewhere")
        directory.symlink_to(root / "elsewhere")
    with pytest.raises(StorageError, match="is a link"):
        read_cluster_metadata(directory)


@pytest.mark.thorough
def test_a_lock_that_is_a_link_makes_and_gives_away_nothing(root, secret, tmp_path):
    for target in (secret, tmp_path / "nothing"):
        (root / ".lock").symlink_to(target)
        before = facts(secret)
        with pytest.raises(StorageError, match="is a link, expected a file"):
            LogDirectoryLock(root).acquire()
        assert facts(secret) == before
        assert not (tmp_path / "nothing").exists()
        assert (root / ".lock").is_symlink()
        with pytest.raises(StorageError, match="is a link, expected a file"):
            query_lock(root)
        (root / ".lock").unlink()


@as_root
def test_a_lock_that_is_another_users_file_is_not_given_away(root, secret):
    os.link(secret, root / ".lock")
    with pytest.raises(StorageError, match="may have given another user's file a name here"):
        LogDirectoryLock(root).acquire()
    assert facts(secret)[1:3] == (0, 0)


def test_a_lock_that_is_a_fifo_is_not_waited_for(root):
    os.mkfifo(root / ".lock")
    with pytest.raises(StorageError, match="is a FIFO, expected a regular file"):
        LogDirectoryLock(root).acquire()


@as_root
def test_an_empty_file_is_not_made_of_another_users(root, secret):
    """It would get the owner of the partition directory, as every file that we make there."""
    os.link(secret, root / "t-0" / "00000000000000000000.txnindex")
    with pytest.raises(StorageError, match="may have given"):
        LocalStore(root / "t-0").create_empty("00000000000000000000.txnindex")
    assert facts(secret)[1:3] == (0, 0)


def managed_with_a_way_out(tmp_path: Path) -> tuple[LocalObjectStore, Path]:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (elsewhere / "data" / "old").write_bytes(b"not the root's")
    (elsewhere / "old").write_bytes(b"not the root's")
    for path in (elsewhere / "data" / "old", elsewhere / "old"):
        os.utime(path, (0, 0))
    managed = tmp_path / "managed"
    (managed / "t-0").mkdir(parents=True)
    (managed / "t-0" / "data").symlink_to(elsewhere / "data")
    (managed / TEMPORARY_FOLDER).symlink_to(elsewhere)
    return LocalObjectStore(managed), elsewhere


def test_a_purge_of_a_managed_root_does_not_walk_out_through_a_link(tmp_path):
    objects, elsewhere = managed_with_a_way_out(tmp_path)
    assert [info.key for info in objects.list("t-0/")] == []
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        objects.delete(["t-0/data/old"])
    [remark] = delete_leftovers(objects, grace_start_ms=1 << 60)
    assert "is a link, expected a directory" in remark
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        find_leftovers(objects, grace_start_ms=1 << 60)
    assert sorted(path.name for path in elsewhere.rglob("*")) == ["data", "old", "old"]


def test_a_managed_root_writes_nothing_through_a_link(tmp_path):
    objects, elsewhere = managed_with_a_way_out(tmp_path)
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        objects.put("u-0/data/new", b"content")
    (tmp_path / "managed" / TEMPORARY_FOLDER).unlink()
    for write in (objects.put, objects.put_if_absent):
        with pytest.raises(StorageError, match="is a link, expected a directory"):
            write("t-0/data/new", b"content")
    assert not (elsewhere / "data" / "new").exists()


class KilledError(BaseException):
    pass


@as_root
def test_an_object_whose_writer_was_killed_before_it_lost_its_first_name_is_read(root, monkeypatch):
    def killed(*args: object, **options: object) -> None:
        raise KilledError

    store = LocalObjectStore(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _and_then(os.link, lambda: patch.setattr(os, "unlink", killed)))
        with pytest.raises(KilledError):
            store.put_if_absent("lease.json", b"{}")
    facts = (root / "lease.json").stat()
    assert (facts.st_nlink, facts.st_uid, facts.st_gid) == (2, KAFKA_USER, KAFKA_GROUP)
    assert store.get("lease.json") == b"{}"


def _and_then(call: Callable[..., None], then: Callable[[], None]) -> Callable[..., None]:
    def both(*args: object, **options: object) -> None:
        call(*args, **options)
        then()

    return both


@pytest.mark.parametrize("url", ["local://{path}", "simplecache::file://{path}"])
def test_a_local_directory_has_no_other_door(tmp_path, url):
    with pytest.raises(ConfigError, match="name a local directory by its path"):
        open_object_store(url.format(path=tmp_path))


def test_scratch_files_are_not_swept_or_found_behind_a_link(root, tmp_path):
    other = tmp_path / "other-0"
    other.mkdir()
    claim = other / "pylog-scratch-run-other-0.claim"
    claim.write_bytes(b"of a run that is at work")
    (root / "other-0").symlink_to(other)
    assert find_claims(root) == []
    sweep_scratch(root)
    assert claim.exists()


def test_scratch_is_not_made_where_a_link_leads(root, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "pylog-scratch-kafka").symlink_to(tmp_path / "etc")
    with pytest.raises(StorageError, match="is a link, expected a directory"):
        create_scratch(root, "run")
    assert not list((tmp_path / "etc").iterdir())


def test_scratch_files_do_not_lie_in_a_folder_that_another_user_made(root, tmp_path):
    home = tmp_path / "pylog-scratch-kafka"
    home.mkdir()
    home.chmod(0o777)
    assert create_scratch(root, "run") is None  # they lie inside of the partitions then
    assert not list(home.iterdir())
    home.chmod(0o700)
    assert create_scratch(root, "run") == home / "run"


def test_a_folder_that_becomes_a_link_while_we_work_is_not_followed(root, tmp_path):
    """Its owner renames it, again and again, while a file is replaced in it."""
    away, other = tmp_path / "away", tmp_path / "other"
    other.mkdir()
    store, stop = LocalStore(root / "t-0"), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "t-0").rename(away)
            (root / "t-0").symlink_to(other)
            (root / "t-0").unlink()
            away.rename(root / "t-0")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300):
            try:
                store.write_file("leader-epoch-checkpoint", b"0\n0\n")
                store.delete("leader-epoch-checkpoint")
            except StorageError:
                continue
    finally:
        stop.set()
        swapper.join()
    assert not list(other.iterdir())


def test_what_is_salvaged_or_kept_can_be_read_by_nobody_else(root, tmp_path):
    partition = write_log(root / "t-1", 0, 10, 20, count=2)
    for path in (partition, *partition.iterdir()):
        path.chmod(0o750 if path == partition else 0o640)
        if os.geteuid() == 0:
            os.chown(path, KAFKA_USER, KAFKA_GROUP)
    before = os.umask(0o022)
    try:
        LocalStore(partition).keep(LOG, str(tmp_path / "trash" / "0000" / LOG), is_copy=True)
        damage_batch(partition / log_file(10), 0)
        salvage_of(partition, tmp_path / "salvage")
    finally:
        os.umask(before)
    place = tmp_path / "salvage" / "t-1"
    owner = (KAFKA_USER, KAFKA_GROUP) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    assert len(list(place.iterdir())) == 9
    for path in (*place.iterdir(), tmp_path / "trash" / "0000" / LOG):
        assert facts(path)[1:] == (*owner, 0o640), path
    found = place.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*owner, 0o750)
    assert stat.S_IMODE((tmp_path / "trash").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "salvage").stat().st_mode) == 0o711


def test_what_is_being_written_can_be_read_by_nobody_else(root, monkeypatch):
    partition = root / "t-0"
    modes = []
    monkeypatch.setattr(
        os, "fchown", lambda fd, *_: modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    os.utime(partition)
    LocalStore(partition).copy_range(LOG, 0, 4, "9.log", modified_ms=1)
    assert set(modes) <= {0o600}


@as_root
def test_a_log_directory_may_be_reached_through_a_link(root, tmp_path):
    """That is the word of the person who named it."""
    (tmp_path / "by-name").symlink_to(root)
    named = tmp_path / "by-name"
    with LogDirectoryLock(named):
        assert query_lock(named).is_held
    state = observe_log_directory(named)
    assert state.meta_properties is not None
    assert LOG in {file.name for file in LocalStore(named / "t-0").list_files()}


def test_a_partition_that_a_person_names_by_a_link_is_what_it_leads_to(root, tmp_path):
    (tmp_path / "by-name-0").symlink_to(root / "t-0")
    for named in (named_partition_directory, named_log_directory, locate_directory):
        assert Path(named(tmp_path / "by-name-0")) == root / "t-0"
