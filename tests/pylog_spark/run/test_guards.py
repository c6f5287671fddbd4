from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cli import jobs, verify
from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import ExitCode, exit_code_of
from pylog_spark.options import JobOptions
from pylog_spark.options.option import CommandLine
from pylog_spark.run.guards import check_ledger, check_roots, check_salvage
from storage_core.catalog.roles import Role
from storage_core.config import CleanerConfig
from storage_core.errors import ConfigError, GuardRefusedError, LogDirectoryNotFoundError
from storage_core.filenames import CLEANER_FILE
from storage_core.roots.open_root import LogRoot
from tests.kit.directories import plain_segment, write_partition

META = "version=1\nnode.id={node}\ncluster.id=V3CHegy_ZdcmiWckVUA0FQ\n"


def log_directory(path: Path, node: int = 1) -> Path:
    path.mkdir()
    (path / "meta.properties").write_text(META.format(node=node))
    return path


OPTIONS = JobOptions(now_ms=1_000, now_is_said=True, role=Role.BROKER)


def check(*roots: Path, **changes) -> None:
    options = replace(OPTIONS, **changes)
    log_roots = resolve_roots(roots, role=options.role)
    check_roots(log_roots, options)
    check_salvage(log_roots, options)


def test_a_broker_directory_whose_role_is_said_may_be_written(tmp_path):
    check(log_directory(tmp_path / "log"))


@pytest.mark.parametrize(
    ("role", "code"), [(None, "ROLE_NOT_SAID"), (Role.MIRROR, "ROLE_IS_READ_ONLY")]
)
def test_other_roles_are_not_written_but_looked_at(tmp_path, role, code):
    root = log_directory(tmp_path / "log")
    with pytest.raises(GuardRefusedError, match=code):
        check(root, role=role)
    check(root, role=role, dry_run=True)


@pytest.mark.item("FLT-13")
def test_a_machine_clock_behind_the_newest_checkpoint_is_refused(tmp_path):
    root = log_directory(tmp_path / "log")
    (root / CLEANER_FILE).write_text("0\n0\n")
    written_ms = (root / CLEANER_FILE).stat().st_mtime_ns // 1_000_000
    # While Spark starts, a broker that still runs may write one: its lock says so better.
    check(root, now_ms=written_ms - 120_000, now_is_said=False)
    with pytest.raises(GuardRefusedError, match="CLOCK_BEFORE_CHECKPOINT"):
        check(root, now_ms=written_ms - 120_001, now_is_said=False)
    check(root, now_ms=written_ms - 120_001, now_is_said=True)


@pytest.mark.parametrize("prefix", ["file://", "file:", "file://localhost", "FILE://"])
def test_a_ledger_whose_url_leads_into_a_log_directory_is_refused(tmp_path, prefix):
    root = log_directory(tmp_path / "log s")
    for text in (str(root), str(root).replace(" ", "%20")):
        with pytest.raises(ConfigError, match=r"--ledger=.*: lies inside the log directory"):
            check(root, ledger=f"{prefix}{text}/ledger")
    check(root, ledger=f"{prefix}{tmp_path}/ledger")


def test_a_ledger_below_a_root_on_the_same_store_is_refused():
    root = LogRoot(location="s3://b/kafka", role=Role.MANAGED, is_said=True)
    for inside in ("s3://b/kafka/ledger", "s3a://b/kafka", "s3n://b/kafka/x/y"):
        with pytest.raises(ConfigError, match="lies inside the root s3://b/kafka"):
            check_ledger([root], inside)
    for outside in ("s3://b/kafka-ledger", "s3://b/", "s3a://c/kafka/x", "gs://b/kafka/x"):
        check_ledger([root], outside)


PLACES = ["ledger", "trash", "salvage", "plan_out"]


@pytest.mark.parametrize("option", PLACES)
@pytest.mark.parametrize("way", ["straight", "by a link", "by a link out of it", "dangling mark"])
def test_no_file_of_ours_may_lie_in_another_brokers_log_directory(tmp_path, option, way):
    root, other = log_directory(tmp_path / "log"), log_directory(tmp_path / "other")
    (other / "t-0").mkdir()
    place = other / "t-0" / "ours"
    match way:
        case "by a link":
            (tmp_path / "link").symlink_to(other / "t-0")
            place = tmp_path / "link" / "ours"
        case "by a link out of it":
            (tmp_path / "elsewhere").mkdir()
            (other / "way").symlink_to(tmp_path / "elsewhere")
            place = other / "way" / "ours"
        case "dangling mark":
            (other / "meta.properties").rename(tmp_path / "away")
            (other / "meta.properties").symlink_to("gone")
    flag = option.replace("_", "-")
    with pytest.raises(
        ConfigError, match=rf"^--{flag}=\S*: lies inside the log directory {other}$"
    ):
        check(root, **{option: str(place)})
    assert exit_code_of(ConfigError("--trash", place, "x")) == ExitCode.USAGE
    check(root, **{option: str(tmp_path / "ours")})


@pytest.mark.parametrize("command", ["run", "verify"])
def test_no_page_may_lie_in_a_log_directory(tmp_path, command):
    root, other = log_directory(tmp_path / "log"), log_directory(tmp_path / "other")
    run = {
        "run": jobs.RUN,
        "verify": verify.VERIFY,
    }[command]
    for inside in (root, other):
        line = CommandLine({"roots": [str(root)], "report": inside / "page.html"})
        with pytest.raises(ConfigError, match=r"--report=.*lies inside the log directory"):
            run(line)


def test_key_sidecars_inside_a_log_directory_are_refused(tmp_path):
    root = log_directory(tmp_path / "log")
    with pytest.raises(ConfigError, match=r"--key-sidecars.*lies inside the log directory"):
        check(root, cleaner=CleanerConfig(key_sidecars=str(root / "keys")))
    check(root, cleaner=CleanerConfig(key_sidecars=str(tmp_path / "keys")))


@pytest.mark.parametrize("secret", [False, True], ids=["the folder", "the secret"])
def test_key_sidecars_in_a_folder_that_others_may_write_are_refused_by_name(tmp_path, secret):
    root = log_directory(tmp_path / "log")
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    if secret:
        (keys / "secret").write_bytes(bytes(16))
        (keys / "secret").chmod(0o666)
    else:
        keys.chmod(0o777)
    with pytest.raises(ConfigError, match=r"--key-sidecars=.*may be written by others"):
        check(root, cleaner=CleanerConfig(key_sidecars=str(keys)))


def test_key_sidecars_behind_a_link_are_refused_by_name(tmp_path):
    root = log_directory(tmp_path / "log")
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "keys").symlink_to(tmp_path / "there")
    with pytest.raises(ConfigError, match=r"--key-sidecars.*is a link"):
        check(root, cleaner=CleanerConfig(key_sidecars=str(tmp_path / "keys")))


def test_a_trash_without_roots_lies_in_no_log_directory_either(tmp_path):
    other = log_directory(tmp_path / "other")
    with pytest.raises(ConfigError, match="--trash"):
        check_roots([], replace(OPTIONS, trash=str(other / "trash")))


@pytest.mark.parametrize("dry_run", [False, True], ids=["for good", "dry run"])
def test_a_trash_inside_a_log_directory_is_refused_before_anything_is_touched(tmp_path, dry_run):
    root, other = log_directory(tmp_path / "log"), log_directory(tmp_path / "other")
    (tmp_path / "link").symlink_to(other)
    for inside in (root / "trash", tmp_path / "x" / ".." / "log", tmp_path / "link" / "a" / "b"):
        with pytest.raises(ConfigError, match=r"--trash.*lies inside the log directory"):
            check(root, other, trash=str(inside), dry_run=dry_run)
    check(root, other, trash=str(tmp_path / "trash"), dry_run=dry_run)
    # Nothing of a managed root is kept in it.
    options = replace(OPTIONS, role=Role.MANAGED, trash=str(root / "trash"), dry_run=True)
    check_roots([LogRoot(location=str(root), role=Role.MANAGED, is_said=True)], options)


def test_a_root_that_is_named_by_a_way_up_has_a_location_without(tmp_path, monkeypatch):
    root = log_directory(tmp_path / "log")
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/deep")
    log_directory(tmp_path / "far" / "log")
    (tmp_path / "name").symlink_to(root)
    monkeypatch.chdir(tmp_path / "far")
    for said, location in (
        ("../log", root),
        (tmp_path / "link" / ".." / "log", tmp_path / "far" / "log"),
        # Without a way up a root keeps the name that it was given.
        ("../name", tmp_path / "name"),
    ):
        (found,) = resolve_roots([said], role=Role.BROKER)
        assert found.location == str(location)


def test_a_partitions_directory_is_refused_as_a_root_and_its_log_directory_named(tmp_path):
    partition = write_partition(tmp_path / "log s" / "or-ders-3", [plain_segment(0, 1)])
    with pytest.raises(ConfigError) as refused:
        check(partition)
    assert str(refused.value).endswith(f"'{tmp_path / 'log s'}' --topics or-ders")


def test_a_log_directory_may_be_named_as_a_partition_is(tmp_path):
    check(log_directory(tmp_path / "kafka-1"))


def test_a_directory_with_nothing_of_a_log_directory_in_it_is_refused(tmp_path):
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "readme.txt").touch()
    for role in (Role.BROKER, Role.MIRROR):
        with pytest.raises(ConfigError, match="is its disk mounted"):
            resolve_roots([tmp_path / "mount"], role=role)
    # Whoever ingests makes this one.
    assert resolve_roots([tmp_path / "mount"], role=Role.MANAGED)


@pytest.mark.item("DIR-11")
def test_directories_of_two_brokers_are_refused(tmp_path):
    first, second = log_directory(tmp_path / "a"), log_directory(tmp_path / "b", node=2)
    with pytest.raises(GuardRefusedError, match="MIXED_DIRECTORIES"):
        check(first, second)


@pytest.mark.item("DIR-01")
def test_a_root_has_to_be_one_directory_once(tmp_path):
    root = log_directory(tmp_path / "log")
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(ConfigError, match="no such directory"):
        check(tmp_path / "absent")
    with pytest.raises(ConfigError, match="is not a directory"):
        check(root / "meta.properties")
    with pytest.raises(ConfigError, match="is the same directory"):
        check(root, tmp_path / "link")
    with pytest.raises(ConfigError, match="at least one"):
        check()


def test_a_mirror_at_a_url_may_be_looked_at_and_never_written():
    (root,) = resolve_roots(["memory://guards/logs/"], role=Role.MIRROR)
    assert (root.location, root.role) == ("memory://guards/logs", Role.MIRROR)
    check_roots([root], replace(OPTIONS, role=Role.MIRROR, dry_run=True))
    with pytest.raises(GuardRefusedError, match="ROLE_IS_READ_ONLY"):
        check_roots([root], replace(OPTIONS, role=Role.MIRROR))


def test_a_role_that_nobody_said_is_guessed(tmp_path):
    root = log_directory(tmp_path / "log")
    (guessed,) = resolve_roots([root], role=None)
    assert (guessed.role, guessed.is_said) == (Role.BROKER, False)
    assert guessed.location == str(root)


@pytest.mark.item("ERR-11")
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_directory_that_the_brokers_own_file_does_not_have_is_refused(tmp_path, dry_run):
    root = log_directory(tmp_path / "log")
    others = {"log.dirs": f"{tmp_path}/a, {tmp_path}/b"}
    with pytest.raises(LogDirectoryNotFoundError, match=r"is not in log\.dirs") as caught:
        check(root, broker_settings=others, dry_run=dry_run)
    assert (caught.value.kafka_code, caught.value.path) == (57, str(root))
    check(root, broker_settings={"log.dirs": f"{tmp_path}/a,{root}/"}, dry_run=dry_run)
    check(root, broker_settings={"log.dir": str(root)}, dry_run=dry_run)
    here = {"log.dirs": str(root)}
    check(root, broker_settings=others, broker_overrides=here, dry_run=dry_run)
    check(root, role=Role.MIRROR, broker_settings=others, dry_run=True)
