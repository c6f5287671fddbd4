"""Commands that only read, on mirrors at URLs and on managed roots."""

from dataclasses import astuple, replace
from typing import Any

import pytest

from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.verify.driver import observe_roots
from pylog_spark.operations.verify.task import Stretch, verify_stretch
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.maintenance.verification.findings import VerifyOptions
from storage_core.store import open_object_store
from tests.kit.program import lines_of
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.managed_roots import managed_twin

NAMES = ["clean-headers-none-s101", "clean-txn-none-s101-3"]
NAME = NAMES[0]
LOG = "00000000000000000000.log"
# What a mirror's listing, and a manifest, do not have as a directory has it.
OWN = {"root", "oldest_timestamp"}


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    return broker_directory(tmp_path_factory.mktemp("origin") / "log", NAMES)


@pytest.fixture(scope="module")
def mirror(origin):
    url = "memory://cli-mirror/logs"
    for path in origin.path.rglob("*"):
        if path.is_file():
            key = path.relative_to(origin.path).as_posix()
            open_object_store(url).put(key, path.read_bytes())
    return url


@pytest.fixture(scope="module")
def twin(origin, tmp_path_factory):
    return managed_twin(origin, tmp_path_factory.mktemp("managed"))


def rows_of(pylog, *words: object, kind: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key not in OWN}
        for row in pylog.rows(*words, kind=kind)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["partition", "segment"])
def test_inspect_says_the_same_of_a_mirror_and_a_managed_root(pylog, origin, mirror, twin, kind):
    expected = rows_of(pylog, "inspect", origin.path, "--segments", kind=kind)
    assert len(expected) >= len(NAMES)
    managed = rows_of(pylog, "inspect", twin.location, "--segments", kind=kind)
    assert managed == expected
    at_url = rows_of(pylog, "inspect", mirror, "--segments", kind=kind)
    for line in (*at_url, *expected):
        line.pop("modified_ms", None)  # an object has the time at which it was written
    assert at_url == expected


def test_inspect_knows_the_role_by_what_lies_there(pylog, origin, mirror, twin):
    found = {}
    for root in (origin.path, mirror, twin.location, f"managed+{twin.location}"):
        (line,) = rows_of(pylog, "inspect", root, kind="log_directory")
        found[str(root)] = line["guessed_role"]
    assert list(found.values()) == ["broker", "mirror", "managed", "managed"]


def test_inspect_shows_one_partition_at_a_url(pylog, mirror, twin):
    for path in (f"{mirror}/{NAME}-0", f"{twin.location}/{NAME}-0", twin.directory(NAME)):
        found = rows_of(pylog, "inspect", path, kind="partition")
        assert [line["topic"] for line in found] == [NAME]


@pytest.mark.parametrize("output", ["json", "table"])
@pytest.mark.parametrize("file", ["", f"/{LOG}", "/leader-epoch-checkpoint"])
def test_dump_prints_the_same_lines_from_everywhere(pylog, origin, mirror, twin, output, file):
    expected = pylog.done("dump", f"{origin.path}/{NAME}-0{file}", "--output", output)
    assert expected.stdout.count("\n") > (0 if file.startswith("/leader") else 10)
    for root in (mirror, twin.location, f"managed+{twin.location}"):
        found = pylog.done("dump", f"{root}/{NAME}-0{file}", "--output", output)
        assert found.stdout == expected.stdout


def test_a_managed_root_is_not_said_to_lack_a_brokers_marker(pylog, origin, twin):
    of_broker, of_managed = (
        " ".join(pylog("inspect", root).stdout.split()) for root in (origin.path, twin.location)
    )
    assert "looks like broker, cleanly shut" in of_broker
    assert "marker" not in of_managed


def test_dump_reads_committed_records_of_a_managed_partition(pylog, origin, twin):
    arguments = ["--output", "json", "--isolation", "read_committed"]
    expected = pylog("dump", f"{origin.path}/{NAMES[1]}-0", *arguments)
    found = pylog("dump", f"{twin.location}/{NAMES[1]}-0", *arguments)
    assert found.stdout == expected.stdout


@pytest.mark.parametrize("name", ["clean-none-0", f"{NAME}-0/00000000000000000007.log"])
def test_dump_of_what_is_not_there_is_wrong_usage(pylog, mirror, twin, name):
    for root in (mirror, twin.location):
        result = pylog("dump", f"{root}/{name}")
        assert result.exit_code != ExitCode.DONE
        assert name.rpartition("/")[2] in result.stderr.replace("\n", "")


def findings(root: str, role: Role) -> list[tuple[Any, ...]]:
    roots = observe_roots([(root, role)], TopicFilter(), is_live=False)
    rows = list(roots.rows)
    options = VerifyOptions(now_ms=FIRST_ROUNDS_MS, is_deep=True)
    for target in roots.targets:
        rows += verify_stretch(Stretch(target=target, size_bytes=0), options)
    assert [row.failure for row in rows if row.failure] == []
    found = [replace(row.finding, file="", fix="") for row in rows if row.row == "finding"]
    return sorted(map(astuple, found), key=str)


def test_verify_finds_the_same_in_a_mirror_at_a_url_and_in_a_local_one(origin, mirror):
    assert findings(mirror, Role.MIRROR) == findings(str(origin.path), Role.MIRROR)


def test_verify_finds_damage_in_a_managed_root_and_names_where_it_is(origin, tmp_path):
    twin = managed_twin(origin, tmp_path / "managed")
    store = twin.store(NAME)
    data = bytearray(store.read_file(LOG, limit_bytes=1 << 30))
    data[100] ^= 0xFF
    store.write_file(LOG, bytes(data))
    store.publish(run_id="damage")
    roots = observe_roots([(twin.location, Role.MANAGED)], TopicFilter(), is_live=False)
    assert len(roots.targets) == len(NAMES)
    rows = [
        row.finding
        for target in roots.targets
        for row in verify_stretch(
            Stretch(target=target, size_bytes=0), VerifyOptions(now_ms=FIRST_ROUNDS_MS)
        )
        if row.row == "finding" and row.finding.severity in {"error", "fatal"}
    ]
    assert {row.file for row in rows} == {f"{twin.directory(NAME)}/{LOG}"}


@pytest.mark.thorough
def test_dump_shows_a_generation_that_was_superseded(pylog, origin, tmp_path):
    twin = managed_twin(origin, tmp_path / "managed")
    before = pylog("dump", twin.directory(NAME), "--output", "json").stdout
    store = twin.store(NAME)
    store.delete(LOG)
    store.publish(run_id="test")
    assert pylog("dump", twin.directory(NAME), "--output", "json").stdout != before
    first = pylog("dump", f"{twin.directory(NAME)}#generation=1", "--output", "json")
    assert first.stdout == before
    # A root that says itself that it is managed need not be called so.
    plain = f"{twin.directory(NAME).removeprefix('managed+')}#generation=1"
    again = pylog("dump", plain, "--output", "json")
    assert (again.exit_code, again.stdout) == (ExitCode.DONE, first.stdout)


@pytest.fixture
def whole_mirror(broker_dir):
    """A copy of a broker's directory with the cluster's metadata in it."""
    url = "memory://cli-whole/logs"
    for path in broker_dir.rglob("*"):
        if path.is_file():
            key = path.relative_to(broker_dir).as_posix()
            open_object_store(url).put(key, path.read_bytes())
    return url


@pytest.mark.thorough
def test_the_clusters_metadata_is_read_at_a_url_too(pylog, broker_dir, whole_mirror):
    def policies(root: object) -> dict[str, str]:
        rows = rows_of(pylog, "inspect", root, kind="partition")
        return {row["directory"]: row["cleanup_policy"] for row in rows}

    assert policies(whole_mirror) == policies(broker_dir)
    assert "compact" in policies(whole_mirror).values()
    assert "has no __cluster_metadata" not in pylog("inspect", whole_mirror).stdout
    told, at_url = (pylog("config", "init", root) for root in (broker_dir, whole_mirror))
    assert (at_url.exit_code, at_url.stdout.splitlines()[7:]) == (0, told.stdout.splitlines()[7:])
    assert "There is no topic here of which the config is unknown." in at_url.stdout


def test_metadata_at_a_url_that_are_damaged_are_an_error(pylog, whole_mirror):
    snapshot = f"__cluster_metadata-0/{5:020d}-{1:010d}.checkpoint"
    open_object_store(whole_mirror).put(snapshot, bytes(40))
    result = pylog("inspect", whole_mirror, "--output", "json")
    rows = lines_of(result)
    (root,) = (row for row in rows if row["type"] == "log_directory")
    (error,) = root["errors"]
    assert "memory://cli-whole/logs/__cluster_metadata-0" in error
