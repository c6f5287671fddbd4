"""A partition directory on a local disk: the contract of all stores, owners, links and crashes."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from storage_core.errors import StorageError
from storage_core.filenames import log_file, segment_file
from storage_core.store import local
from storage_core.threads import in_turns
from tests.kit.power_loss import Disk, Loss
from tests.kit.store_contract import NAME, OTHER, StoreContract, StoreHome

KAFKA_USER, KAFKA_GROUP = 1234, 4321
COLOUR = "user.colour"
SECONDS = 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@dataclass(frozen=True)
class LocalHome(StoreHome):
    directory: Path

    @property
    def store(self) -> local.LocalStore:
        return local.LocalStore(self.directory)

    @property
    def missing(self) -> local.LocalStore:
        return local.LocalStore(self.directory.with_name("missing-0"))

    def scratch(self, content: bytes) -> str:
        path = self.directory.with_name("scratch")
        path.write_bytes(content)
        return str(path)

    def leave_temporary(self, name: str) -> None:
        (self.directory / f"{name}.tmp").write_bytes(b"half of a longer content")


@pytest.fixture
def home(tmp_path: Path) -> LocalHome:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    return LocalHome(directory)


class TestLocalStore(StoreContract):
    @pytest.fixture
    def home(self, home: LocalHome) -> LocalHome:
        return home


@pytest.fixture
def directory(home: LocalHome) -> Path:
    return home.directory


@pytest.fixture
def store(home: LocalHome) -> local.LocalStore:
    return home.store


def test_only_regular_files_are_listed(directory, store):
    (directory / "folder").mkdir()
    (directory / "broken").symlink_to(directory / "nowhere")
    (directory / NAME).write_bytes(b"12")
    os.utime(directory / NAME, ns=(0, 1_700_000_000_123_999_999))
    (info,) = store.list_files()
    assert (info.name, info.size_bytes, info.modified_ms) == (NAME, 2, 1_700_000_000_123)


def test_a_file_is_no_directory(directory):
    (directory / NAME).touch()
    with pytest.raises(StorageError, match="Not a directory"):
        local.LocalStore(directory / NAME).read_file(OTHER, limit_bytes=9)


def test_what_the_system_refuses_is_a_storage_error_with_the_path(directory, store):
    (directory / NAME).mkdir()
    (directory / "inside").mkdir()
    (directory / "inside" / "file").touch()
    scratch = directory.with_name("scratch")
    scratch.touch()
    for refused in (
        lambda: store.write_file(NAME, b""),
        lambda: store.create_empty(NAME),
        lambda: store.read_file(NAME, limit_bytes=9),
        lambda: store.promote(str(scratch), NAME),
        lambda: store.delete(NAME),
        lambda: store.truncate(NAME, 0),
        lambda: store.rename(NAME, "inside"),
    ):
        with pytest.raises(StorageError) as caught:
            refused()
        assert caught.value.path == str(directory / NAME)
        assert caught.value.kafka_code == 56
        assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StorageError):
        local.LocalStore(directory / "nowhere").sync_directory()


def test_a_write_that_fails_leaves_the_old_content(directory, store, monkeypatch):
    store.write_file(NAME, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "fsync", fail)
        with pytest.raises(StorageError, match="No space left on device"):
            store.write_file(NAME, b"new")
    assert (directory / NAME).read_bytes() == b"old"
    store.write_file(NAME, b"new")
    assert [info.name for info in store.list_files()] == [NAME]


@pytest.mark.parametrize(
    ("old", "new", "is_linked", "is_written"),
    [
        (b"0\n1\n0 0\n", b"0\n1\n0 130\n", False, True),
        (b"0\n1\n0 130\n", b"0\n1\n0 0\n", False, True),
        (b"x" * 4000, b"x" * 4000, True, True),
        (b"x" * 500, b"y" * 513, False, False),
        (b"x" * 513, b"y", False, False),
        (b"x", b"y", True, False),
        (b"", b"y", False, False),
        (None, b"y", False, False),
    ],
)
def test_without_room_a_small_file_is_written_in_place(
    directory, store, monkeypatch, old, new, is_linked, is_written
):
    if old is not None:
        (directory / "small").write_bytes(old)
    if is_linked:
        (directory / "second").hardlink_to(directory / "small")
    create = local.create_in

    def full(folder: int, name: str) -> int:
        create(folder, name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "create_in", full)
    if is_written:
        store.write_file("small", new)
    else:
        with pytest.raises(StorageError) as raised:
            store.write_file("small", new)
        assert local.is_without_room(raised.value)
    expected = new if is_written else old
    assert (directory / "small").exists() == (expected is not None)
    assert expected is None or (directory / "small").read_bytes() == expected
    assert not list(directory.glob("*.tmp"))


def test_a_write_is_on_disk_before_it_takes_its_name(directory, store, monkeypatch):
    steps = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        steps.append("sync directory" if is_directory else "sync file")
        sync(descriptor)

    def noted_replace(path: str, target: str, **folders: int) -> None:
        steps.append(f"{path} becomes {target}")
        replace(path, target, **folders)

    monkeypatch.setattr(local.os, "fsync", noted_sync)
    monkeypatch.setattr(local.os, "replace", noted_replace)
    store.write_file(NAME, b"content")
    assert steps == ["sync file", f"{NAME}.tmp becomes {NAME}", "sync directory"]


def test_a_temporary_name_that_leads_elsewhere_is_not_followed(directory, store):
    elsewhere = directory.with_name("precious")
    elsewhere.write_bytes(b"precious")
    (directory / f"{NAME}.tmp").symlink_to(elsewhere)
    store.write_file(NAME, b"content")
    os.link(elsewhere, directory / f"{OTHER}.tmp")
    store.write_file(OTHER, b"content")
    assert elsewhere.read_bytes() == b"precious"
    assert [path.is_symlink() for path in sorted(directory.iterdir())] == [False, False]


@pytest.mark.parametrize("target", ["precious", "nothing"])
@pytest.mark.parametrize("change", ["truncate", "create_empty", "promote"])
def test_what_a_link_leads_to_is_not_changed(directory, store, change, target):
    precious = directory.with_name("precious")
    precious.write_bytes(b"precious")
    link = directory / NAME
    link.symlink_to(directory.with_name(target))
    if os.geteuid() == 0:
        os.chown(directory, KAFKA_USER, KAFKA_GROUP)
    before = owner_and_mode(precious)
    changes = {
        "truncate": lambda: store.truncate(NAME, 4),
        "create_empty": lambda: store.create_empty(NAME),
        "promote": lambda: store.promote(str(link), OTHER),
    }
    with pytest.raises(StorageError, match="is a link, expected a file"):
        changes[change]()
    assert (precious.read_bytes(), owner_and_mode(precious)) == (b"precious", before)
    assert sorted(path.name for path in directory.parent.iterdir()) == ["precious", directory.name]
    assert link.is_symlink()


def test_a_link_is_replaced_and_removed_and_what_it_leads_to_stays(directory, store):
    precious = directory.with_name("precious")
    precious.write_bytes(b"precious")
    (directory / OTHER).write_bytes(b"content")
    for change in (
        lambda: store.write_file(NAME, b"content"),
        lambda: store.copy_range(OTHER, 0, 7, NAME, modified_ms=9),
        lambda: store.promote(str(scratch(directory)), NAME),
        lambda: store.delete(NAME),
    ):
        (directory / NAME).unlink(missing_ok=True)
        (directory / NAME).symlink_to(precious)
        change()
        assert not (directory / NAME).is_symlink()
        assert precious.read_bytes() == b"precious"


def test_a_directory_that_a_person_named_may_be_a_link(home):
    link = home.directory.with_name("linked-0")
    link.symlink_to(home.directory)
    linked = local.LocalStore(link, may_be_link=True)
    linked.write_file("written", b"content")
    linked.create_empty("empty")
    linked.promote(home.scratch(b"cleaned"), "promoted")
    linked.truncate("written", 4)
    linked.sync_directory()
    assert [(f.name, f.size_bytes) for f in home.store.list_files()] == [
        ("empty", 0),
        ("promoted", 7),
        ("written", 4),
    ]


def test_a_file_with_several_links_is_replaced_by_what_is_left_of_it(directory, store):
    (directory / NAME).write_bytes(b"0123456789")
    os.link(directory / NAME, directory.with_name("backup"))
    store.truncate(NAME, 4)
    assert (directory / NAME).read_bytes() == b"0123"
    assert directory.with_name("backup").read_bytes() == b"0123456789"
    assert [path.name for path in directory.iterdir()] == [NAME]


def test_a_file_that_is_replaced_hands_on_its_extended_attributes(directory, store):
    if not takes_attributes(directory):
        pytest.skip("this filesystem has no extended attributes")
    path = directory / NAME
    for write in (
        lambda: store.write_file(NAME, b"new"),
        lambda: store.promote(str(scratch(directory)), NAME),
        lambda: store.truncate(NAME, 1),
    ):
        path.unlink(missing_ok=True)
        path.write_bytes(b"old")
        os.link(path, path.with_name("link"))
        os.setxattr(path, COLOUR, b"red")
        write()
        assert os.getxattr(path, COLOUR) == b"red"
        path.with_name("link").unlink()


@pytest.mark.parametrize("suffix", [".log", ".index", ".txnindex"])
def test_a_cleaned_file_has_the_manners_of_what_it_is_going_to_replace(directory, store, suffix):
    """One without a predecessor has those of its segment's log, not of the directory."""
    directory.chmod(0o755)
    base = f"{5:020d}"
    has_attributes = takes_attributes(directory)
    for name in (f"{base}.log", f"{base}.index"):
        path = directory / name
        path.write_bytes(b"old")
        path.chmod(0o600)
        if has_attributes:
            os.setxattr(path, COLOUR, b"red")
        if os.geteuid() == 0:
            os.chown(path, KAFKA_USER, KAFKA_GROUP)
    expected = owner_and_mode(directory / f"{base}.log")
    cleaned = f"{base}{suffix}.cleaned"
    store.promote(str(scratch(directory)), cleaned)
    store.rename(cleaned, f"{base}{suffix}.swap")
    store.rename(f"{base}{suffix}.swap", f"{base}{suffix}")
    assert owner_and_mode(directory / f"{base}{suffix}") == expected
    if has_attributes:
        assert os.getxattr(directory / f"{base}{suffix}", COLOUR) == b"red"


def test_a_part_of_a_split_segment_has_the_manners_of_the_whole(directory, store):
    directory.chmod(0o755)
    whole = directory / f"{0:020d}.log"
    whole.write_bytes(b"0123456789")
    whole.chmod(0o600)
    part = f"{7:020d}"
    store.copy_range(whole.name, 5, 5, f"{part}.log.cleaned", modified_ms=9)
    store.write_file(f"{part}.index.cleaned", b"")
    for name in (f"{part}.log.cleaned", f"{part}.index.cleaned"):
        assert owner_and_mode(directory / name) == owner_and_mode(whole)


def takes_attributes(directory: Path) -> bool:
    """Whether a file of this filesystem can have extended attributes."""
    path = directory.with_name("attributes")
    path.touch()
    try:
        os.setxattr(path, COLOUR, b"red")
    except OSError:
        return False
    finally:
        path.unlink()
    return True


def scratch(directory):
    path = directory.with_name("scratch")
    path.write_bytes(b"promoted")
    return path


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    facts = path.stat()
    return facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)


def make_every_file(home: LocalHome) -> None:
    home.store.write_file("written", b"content")
    home.store.create_empty("empty")
    home.store.promote(home.scratch(b"cleaned"), "promoted")


FILES = ("written", "empty", "promoted")


@as_root
@pytest.mark.parametrize(
    ("directory_mode", "file_mode"), [(0o755, 0o644), (0o700, 0o600), (0o2775, 0o664)]
)
def test_new_files_belong_to_the_owner_of_the_directory(home, directory_mode, file_mode):
    os.chown(home.directory, KAFKA_USER, KAFKA_GROUP)
    home.directory.chmod(directory_mode)
    make_every_file(home)
    for name in FILES:
        assert owner_and_mode(home.directory / name) == (KAFKA_USER, KAFKA_GROUP, file_mode), name


@as_root
def test_a_replaced_file_keeps_owner_and_mode(home):
    for name in FILES:
        (home.directory / name).touch()
        os.chown(home.directory / name, KAFKA_USER, KAFKA_GROUP)
        (home.directory / name).chmod(0o640)
    make_every_file(home)
    for name in FILES:
        assert owner_and_mode(home.directory / name) == (KAFKA_USER, KAFKA_GROUP, 0o640), name


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o000], ids=oct)
def test_the_mode_is_not_that_of_the_process(home, mask):
    home.directory.chmod(0o750)
    before = os.umask(mask)
    try:
        make_every_file(home)
    finally:
        os.umask(before)
    assert {owner_and_mode(home.directory / name)[2] for name in FILES} == {0o640}


def test_somebody_who_is_not_root_keeps_what_they_may(home, monkeypatch):
    def refuse(descriptor: int, user: int, group: int) -> None:
        raise AssertionError("only root may give files away")

    monkeypatch.setattr(local.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(local.os, "fchown", refuse)
    make_every_file(home)
    assert [info.name for info in home.store.list_files()] == sorted(FILES)


def test_what_has_the_manners_of_its_place_is_not_synced_when_it_is_moved_there(home, monkeypatch):
    (home.directory / log_file(0)).touch()
    (home.directory / log_file(0)).chmod(0o640)
    scratch = Path(home.scratch(b"index"))
    with scratch.open("rb") as file:
        home.store.hand_on_ownership(file.fileno(), segment_file(0, ".index"))
    assert owner_and_mode(scratch) == owner_and_mode(home.directory / log_file(0))

    def refuse(_descriptor: int) -> None:
        raise AssertionError("its writer has synced it")

    monkeypatch.setattr(os, "fsync", refuse)
    home.store.promote(str(scratch), segment_file(0, ".index.cleaned"))


def test_others_go_on_while_a_large_file_is_removed(home, monkeypatch):
    monkeypatch.setattr(local, "_LARGE_BYTES", 4)
    names = ("00.log.deleted", "01.log.deleted")
    for name in names:
        (home.directory / name).write_bytes(b"large")
    (home.directory / "small").write_bytes(b"few")
    together = threading.Barrier(len(names), timeout=SECONDS)
    unlink = os.unlink

    def slow(name: str, *, dir_fd: int) -> None:
        if name in names:
            together.wait()
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", slow)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(in_turns(home.store.delete), [*names, "small", "not-there"]))
    assert list(home.directory.iterdir()) == []


def test_a_promoted_file_keeps_its_time(home):
    scratch = home.scratch(b"cleaned")
    os.utime(scratch, ns=(0, 1_600_000_000_000_000_000))
    home.store.promote(scratch, NAME)
    assert home.store.list_files()[0].modified_ms == 1_600_000_000_000


def test_a_file_that_shrinks_ends_a_read(directory, store):
    (directory / NAME).write_bytes(b"0123456789")
    file = store.open_file(NAME)
    os.truncate(directory / NAME, 4)
    assert file.size_bytes == 10
    assert file.read_into(0, np.empty(10, np.uint8)) == 4
    file.close()


# --- files that are mapped


def can_lease(directory: Path) -> bool:
    """Whether this filesystem knows leases."""
    (directory / OTHER).write_bytes(b"x")
    with closing(local.LocalStore(directory, is_ours=True).open_file(OTHER)) as file:
        return file.map(0, 1) is not None


@pytest.fixture
def content(directory):
    """Return the 100,000 bytes of a file that may be mapped."""
    if not can_lease(directory):
        pytest.skip("this filesystem knows no leases")
    some = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    (directory / NAME).write_bytes(some.tobytes())
    return some


def opened(directory: Path, *, is_ours: bool = True) -> closing[local.LocalFileReader]:
    return closing(local.LocalStore(directory, is_ours=is_ours).open_file(NAME))


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 50_001])
@pytest.mark.parametrize("size_bytes", [1, 4096, 30_000])
def test_a_mapped_file_shows_what_a_read_of_it_gives(directory, content, position, size_bytes):
    with opened(directory) as file:
        shown = file.map(position, size_bytes)
        assert shown.tolist() == content[position : position + size_bytes].tolist()


def test_what_is_written_into_a_mapping_stays_out_of_the_file(directory, content):
    with opened(directory) as file:
        file.map(0, 100)[:] = 0
    assert (directory / NAME).read_bytes() == content.tobytes()


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize(("position", "size_bytes"), [(0, 0), (99_999, 2), (200_000, 10)])
def test_nothing_is_mapped_that_a_file_does_not_have(directory, position, size_bytes):
    with opened(directory) as file:
        assert file.map(position, size_bytes) is None


@pytest.mark.usefixtures("content")
def test_who_wants_to_cut_a_mapped_file_waits_until_nobody_looks_at_it(directory):
    command = [sys.executable, "-c", f"import os; os.truncate({NAME!r}, 9)"]
    file = opened(directory).thing
    shown = file.map(0, 100_000)
    with subprocess.Popen(command, cwd=directory) as cut:
        while file.map(0, 100_000) is not None:
            time.sleep(0.01)
        assert cut.poll() is None
        assert shown.any()  # of a file that is shorter this would end the process
        assert file.read_into(0, np.empty(100_000, np.uint8)) == 100_000
        file.close()
        assert cut.poll() is None
        del shown
        assert cut.wait() == 0
    assert (directory / NAME).stat().st_size == 9


@pytest.mark.usefixtures("content")
def test_a_file_that_somebody_writes_is_not_mapped(directory):
    with (directory / NAME).open("r+b"), opened(directory) as file:
        assert file.map(0, 100) is None


@pytest.mark.usefixtures("content")
def test_a_store_that_is_not_ours_holds_nobody_up(directory):
    with opened(directory, is_ours=False) as file:
        assert file.map(0, 100) is None
        os.truncate(directory / NAME, 9)


@pytest.mark.usefixtures("content")
def test_a_file_that_is_only_read_holds_nobody_up(directory):
    with opened(directory) as file:
        assert file.read_into(0, np.empty(100, np.uint8)) == 100
        os.truncate(directory / NAME, 9)


@pytest.mark.usefixtures("content")
def test_a_page_that_cannot_be_had_is_left_to_a_read(directory, monkeypatch):
    monkeypatch.setattr(local._libc, "madvise", lambda *_: -1)
    with opened(directory) as file:
        assert file.map(0, 100) is None


def test_a_closed_reader_lets_go_of_its_file(directory, store):
    (directory / NAME).touch()
    file = store.open_file(NAME)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file._descriptor)


def test_a_file_that_is_one_hole_of_terabytes_is_refused_unread(tmp_path, monkeypatch):
    with (tmp_path / "0.index").open("wb") as file:
        file.truncate(8 << 40)

    def no_read(*_: object) -> bytes:
        raise AssertionError("its size says enough")

    monkeypatch.setattr(os, "pread", no_read)
    with pytest.raises(StorageError, match=f"is longer than the {1 << 30} bytes it may have"):
        local.LocalStore(tmp_path).read_file("0.index", limit_bytes=1 << 30)


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A folder in which ``link`` leads to ``far/deep``; the current one."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/deep")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("a/b", "a/b"),
        ("a/../b", "b"),
        ("link/../b", "far/b"),
        ("link/b", "link/b"),
        ("far/../link/b", "link/b"),
        ("none/../b", "b"),
        ("link/..", "far"),
        (".", "."),
    ],
)
def test_a_plain_path_leads_to_the_same_place_without_going_up(place, said, plain):
    assert local.plain_path(Path(said)) == place / plain
    assert local.plain_path(place / said) == place / plain
    assert os.path.realpath(place / plain) == os.path.realpath(place / said)


def test_nobody_gets_above_the_root():
    assert local.plain_path(Path("/../..")) == Path("/")


@pytest.mark.item("FLT-08")
def test_a_folder_of_a_process_that_was_killed_before_it_synced_it_is_durable_too(tmp_path):
    def work() -> None:
        (tmp_path / "disk" / "trash").mkdir()  # the other process got this far
        local.write_record(tmp_path / "disk" / "trash" / "run" / "run.json", b"a run")

    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    disk.run(work)
    disk.leave(Loss.EVERYTHING)
    assert (tmp_path / "disk" / "trash" / "run" / "run.json").read_bytes() == b"a run"


def test_a_folder_that_is_there_costs_no_sync_and_a_foreign_one_above_is_not_opened(
    tmp_path, monkeypatch
):
    synced: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", synced.append)
    local.make_folder(tmp_path)
    assert synced == []
    local.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]
    synced.clear()
    monkeypatch.setattr(os, "access", lambda *_: False)
    local.make_folder(tmp_path / "c")
    assert synced == [tmp_path]
