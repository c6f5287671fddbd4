"""What lies in log directories, whose they are, and the file that switches all off."""

from pathlib import Path

import pytest

from storage_core.catalog.log_directories import (
    DirectoryKind,
    SubDirectory,
    classify_directory,
    find_duplicate_partitions,
    find_inconsistent_topic_ids,
    read_topic_id,
    read_topic_ids,
)
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off, read_off_switch
from storage_core.catalog.roles import Role, guess_role, local_path, require_role
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition
from storage_core.store import LocalStore, open_object_store
from tests.kit.golden_data import Golden
from tests.kit.one_partition import observe_log_directory

UNIQUE = "0123456789abcdef0123456789abcdef"
ID_A = "6OhPo7FvRwiN63dAgYqoUA"
ID_B = "Pwfy5rl5Qw6jBT2A6nuzCQ"
DIRECTORY_ID = "ohZNig90xgRlmLmr-NUttg"
OTHER_DIRECTORY_ID = "Y0x2kbxs_vG_YmsMBH-UEg"


def make_partition(root: Path, name: str, topic_id: str | None = None) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    if topic_id is not None:
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    return directory


def make_root(
    root: Path, *names: str, directory_id: str = DIRECTORY_ID, cluster_id: str = "c"
) -> Path:
    for name in names:
        make_partition(root, name)
    root.mkdir(exist_ok=True)
    (root / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id={cluster_id}\ndirectory.id={directory_id}\n"
    )
    return root


def entries_of(*roots: Path) -> list[SubDirectory]:
    """Return the sub-directories of several log directories."""
    return [entry for root in roots for entry in observe_log_directory(root).entries]


@pytest.mark.item("DIR-05", "DIR-06", "DIR-08")
@pytest.mark.parametrize(
    ("name", "kind", "partition"),
    [
        ("a-0", "partition", TopicPartition("a", 0)),
        ("a-b.c_d-12", "partition", TopicPartition("a-b.c_d", 12)),
        ("x-delete-0", "partition", TopicPartition("x-delete", 0)),
        ("__consumer_offsets-49", "partition", TopicPartition("__consumer_offsets", 49)),
        ("__cluster_metadata-0", "metadata", TopicPartition("__cluster_metadata", 0)),
        ("remote-log-index-cache", "cache", None),
        (f"a-0.{UNIQUE}-delete", "delete", TopicPartition("a", 0)),
        (f"a-0.{UNIQUE}-future", "future", TopicPartition("a", 0)),
        (f"a-0.{UNIQUE}-stray", "stray", TopicPartition("a", 0)),
        ("lost+found", "foreign", None),
        ("-0", "foreign", None),
        ("a-", "foreign", None),
        ("a-x", "foreign", None),
        ("a-99999999999", "foreign", None),
        ("a-0-delete", "foreign", None),
        (f"a-0.{UNIQUE}-moved", "foreign", None),
        (f"a.{UNIQUE}-delete", "foreign", None),
        ("a b-0", "foreign", None),
    ],
)
def test_a_directorys_name_says_what_it_is(name: str, kind: str, partition: TopicPartition | None):
    assert classify_directory(name) == (DirectoryKind(kind), partition)


@pytest.mark.item("DIR-06")
def test_a_deleted_partition_with_the_longest_name_is_known_although_its_topic_is_cut():
    suffix = f"-7.{UNIQUE}-delete"
    name = ("t" * 249)[: 255 - len(suffix)] + suffix
    assert len(name) == 255
    kind, partition = classify_directory(name)
    assert kind is DirectoryKind.DELETE
    assert partition == TopicPartition("t" * 213, 7)


def test_a_brokers_own_directory_is_read(tmp_path: Path):
    golden = Golden("broker-dir")
    state = observe_log_directory(golden.unpack(tmp_path))
    names = {Path(entry.path).name for entry in state.of_kind(DirectoryKind.PARTITION)}
    assert names == set(golden.case["expected"]) - {"__cluster_metadata-0"}
    assert len(state.of_kind(DirectoryKind.METADATA)) == 1
    assert state.meta_properties.directory_id == "ohZNig90xgRlmLmr-NUttg"
    assert state.clean_shutdown.broker_epoch == 11
    assert all(entry.topic_id and not entry.problem for entry in state.entries)


@pytest.mark.item("DIR-05")
def test_a_foreign_directory_is_reported(tmp_path: Path):
    state = observe_log_directory(make_root(tmp_path, "a-0", "lost+found"))
    (foreign,) = state.of_kind(DirectoryKind.FOREIGN)
    assert foreign.path == str(tmp_path / "lost+found")
    assert "expected <topic>-<partition>" in foreign.problem
    assert len(state.of_kind(DirectoryKind.PARTITION)) == 1


@pytest.mark.item("DIR-06", "DIR-08")
def test_deleted_and_stray_partitions_are_listed_and_count_for_nothing(tmp_path: Path):
    deleted = [f"a-0.{unique}-delete" for unique in (UNIQUE, UNIQUE[::-1])]
    root = make_root(tmp_path, "a-0", *deleted, f"a-0.{UNIQUE}-stray")
    make_partition(root, f"a-1.{UNIQUE}-stray", ID_B)
    make_partition(root, "a-1", ID_A)
    state = observe_log_directory(root)
    assert len(state.of_kind(DirectoryKind.DELETE)) == 2
    assert len(state.of_kind(DirectoryKind.STRAY)) == 2
    assert find_duplicate_partitions(state.entries) == []
    assert find_inconsistent_topic_ids(state.entries) == []


def test_files_are_no_partitions_but_links_to_directories_are(tmp_path: Path):
    root = make_root(tmp_path / "root")
    (root / "file-0").touch()
    (root / "dangling-0").symlink_to(tmp_path / "none")
    (root / "linked-0").symlink_to(make_partition(tmp_path, "elsewhere"))
    (entry,) = observe_log_directory(root).entries
    assert entry.topic_partition == TopicPartition("linked", 0)


@pytest.mark.item("DIR-09")
def test_a_partition_in_two_directories_is_named_with_both_paths(tmp_path: Path):
    one = make_root(tmp_path / "one", "a-0", "a-1", f"a-2.{UNIQUE}-future")
    other = make_root(
        tmp_path / "other", "a-0", "a-2", f"a-1.{UNIQUE}-future", directory_id=OTHER_DIRECTORY_ID
    )
    (error,) = find_duplicate_partitions(entries_of(one, other))
    assert error.topic_partition == "a-0"
    assert error.paths == (str(one / "a-0"), str(other / "a-0"))
    assert str(one / "a-0") in str(error)
    assert str(other / "a-0") in str(error)


@pytest.mark.item("DIR-09")
def test_two_future_copies_of_a_partition_are_duplicates_too(tmp_path: Path):
    names = [f"a-0.{UNIQUE}-future", f"a-0.{UNIQUE[::-1]}-future"]
    state = observe_log_directory(make_root(tmp_path, *names))
    (error,) = find_duplicate_partitions(state.entries)
    assert len(error.paths) == 2


@pytest.mark.item("DIR-10")
def test_a_topic_id_that_is_not_the_first_ones_is_reported_and_none_is_allowed(tmp_path: Path):
    root = make_root(tmp_path)
    make_partition(root, "a-0", ID_A)
    wrong = make_partition(root, "a-1", ID_B)
    make_partition(root, "a-2")
    make_partition(root, "b-0", ID_B)
    state = observe_log_directory(root)
    (error,) = find_inconsistent_topic_ids(state.entries)
    assert (error.path, error.expected, error.actual) == (str(wrong), ID_A, ID_B)
    assert error.kafka_code == 103


@pytest.mark.item("DIR-10")
def test_topic_ids_are_compared_between_directories(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    make_partition(one, "a-0", ID_A)
    make_partition(other, "a-1", ID_B)
    entries = entries_of(make_root(one), make_root(other, directory_id=ID_B))
    (error,) = find_inconsistent_topic_ids(entries)
    assert error.path == str(other / "a-1")


def test_a_broken_topic_id_is_a_problem_of_its_partition_alone(tmp_path: Path):
    root = make_root(tmp_path, "a-0")
    (root / "a-0" / "partition.metadata").write_text("nonsense")
    make_partition(root, "a-1", ID_A)
    broken, good = observe_log_directory(root).entries
    assert (broken.topic_id, good.topic_id, good.problem) == (None, ID_A, "")
    assert "partition.metadata: line 1" in broken.problem


@pytest.mark.item("CKP-16")
def test_an_unreadable_marker_is_a_marker_all_the_same(tmp_path: Path):
    root = make_root(tmp_path)
    assert observe_log_directory(root).clean_shutdown is None
    for content in ("", "x" * 100_000):
        (root / ".kafka_cleanshutdown").write_text(content)
        marker = observe_log_directory(root).clean_shutdown
        assert marker.broker_epoch == -1


def test_observing_names_the_damaged_file(tmp_path: Path):
    root = make_root(tmp_path)
    (root / "meta.properties").write_text("version=7")
    with pytest.raises(CheckpointError) as raised:
        observe_log_directory(root)
    assert raised.value.file == str(root / "meta.properties")


def test_the_topic_id_of_a_partition_on_a_disk_is_read_without_listing_it(tmp_path, monkeypatch):
    with_id = make_partition(tmp_path, "t-0", ID_A)
    without = make_partition(tmp_path, "t-1")

    def listed(store):
        raise AssertionError(f"{store.location} was listed")

    monkeypatch.setattr(LocalStore, "list_files", listed)
    assert [read_topic_id(str(place)) for place in (with_id, without)] == [ID_A, None]


def test_a_directory_with_a_brokers_properties_looks_like_a_brokers(tmp_path: Path):
    assert guess_role(tmp_path) is Role.MIRROR
    (tmp_path / "meta.properties").touch()
    assert guess_role(tmp_path) is Role.BROKER
    assert guess_role(str(tmp_path)) is Role.BROKER
    assert guess_role(f"file://{tmp_path}") is Role.BROKER


def test_a_directory_with_our_word_for_it_looks_managed(tmp_path: Path):
    (tmp_path / "pylog-root.json").touch()
    (tmp_path / "meta.properties").touch()
    assert guess_role(tmp_path) is Role.MANAGED


def test_a_url_is_a_mirror_unless_our_own_object_lies_there(tmp_path: Path):
    url = f"memory://roles-{tmp_path.name}"
    assert guess_role(url) is Role.MIRROR
    open_object_store(url).put("pylog-root.json", b"{}")
    assert guess_role(url) is Role.MANAGED
    assert guess_role(tmp_path / "none") is Role.MIRROR


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/data/logs", Path("/data/logs")),
        ("data:1/logs", Path("data:1/logs")),
        ("file:///data/my%20logs", Path("/data/my logs")),
        ("s3://bucket/logs", None),
        (Path("/data"), Path("/data")),
    ],
)
def test_a_root_is_a_path_or_a_url(root: str | Path, path: Path | None):
    assert local_path(root) == path


def test_what_writes_needs_the_role_said(tmp_path: Path):
    (tmp_path / "meta.properties").touch()
    with pytest.raises(GuardRefusedError) as raised:
        require_role(None, tmp_path)
    assert raised.value.code == "ROLE_NOT_SAID"
    assert raised.value.override == "--role broker"
    assert require_role(Role.BROKER, tmp_path) is Role.BROKER
    assert require_role(Role.MANAGED, tmp_path) is Role.MANAGED


def test_nobody_is_told_to_call_a_root_a_mirror_in_order_to_write_it(tmp_path: Path):
    with pytest.raises(
        GuardRefusedError, match="looks like a mirror, which pylog only reads"
    ) as said:
        require_role(None, tmp_path)
    assert said.value.override == "--role broker or managed, if it is one"


def test_a_mirror_is_never_written(tmp_path: Path):
    with pytest.raises(GuardRefusedError) as raised:
        require_role(Role.MIRROR, tmp_path)
    assert (raised.value.code, raised.value.override) == ("ROLE_IS_READ_ONLY", None)


def test_without_the_file_nobody_said_anything(tmp_path):
    assert read_off_switch(tmp_path) is None
    assert not is_switched_off(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", ""),
        (b"moving to new disks, ask Ana\nuntil Friday", "moving to new disks, ask Ana"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * 200),
    ],
)
def test_its_first_line_says_why(tmp_path, content, why):
    (tmp_path / OFF_SWITCH_FILE).write_bytes(content)
    assert read_off_switch(tmp_path) == why
    assert is_switched_off(str(tmp_path))


def test_places_that_are_no_directories_of_this_machine_have_no_such_file(tmp_path):
    assert not is_switched_off("s3://bucket/logs/orders-0")
    assert not is_switched_off(str(tmp_path / "gone"))


def test_a_switch_that_cannot_be_read_is_no_permission(tmp_path):
    (tmp_path / OFF_SWITCH_FILE).mkdir()
    with pytest.raises(StorageError):
        read_off_switch(tmp_path)


def test_topic_ids_are_read_together_where_nothing_is_wrong(tmp_path: Path):
    sound = [make_partition(tmp_path, f"t-{number}", ID_A) for number in range(2)]
    long, broken = (make_partition(tmp_path, f"{name}-0", ID_A) for name in ("long", "broken"))
    content = (long / "partition.metadata").read_bytes()
    (long / "partition.metadata").write_bytes(content + b"\n" * 300)
    (broken / "partition.metadata").write_bytes(content[:20])
    (tmp_path / "link-0").symlink_to(sound[0])
    places = [*sound, long, broken, tmp_path / "link-0", make_partition(tmp_path, "without-0")]
    assert read_topic_ids([*map(str, places), "s3://b/t-0"]) == dict.fromkeys(map(str, sound), ID_A)
