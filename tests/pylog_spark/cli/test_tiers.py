"""Commands that read a tier (KIP-405): what they print, and what they refuse."""

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.program import lines_of
from tests.kit.tier_archives import TierCase, unpack_tier


@pytest.fixture(scope="module")
def active(tmp_path_factory: pytest.TempPathFactory) -> TierCase:
    """A topic of which the disk has the active segment alone."""
    return unpack_tier("local_active", tmp_path_factory.mktemp("tier"))


@pytest.fixture(scope="module")
def deleted(tmp_path_factory: pytest.TempPathFactory) -> TierCase:
    """A tier with two topics of one name, one of them with an incomplete segment."""
    return unpack_tier("topic_deleted", tmp_path_factory.mktemp("tier"))


def test_the_disk_alone_says_what_lies_in_the_tier_and_how_to_read_it(pylog, active):
    disk = active.folder / "local" / "b1"
    result = pylog("cat", disk, "--topic", "stock_levels")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert result.stdout_bytes == b""
    assert "offsets 0 to 964 are in no segment here" in result.stderr
    assert "--with-local" in result.stderr


@pytest.mark.parametrize(
    "words", [("export", "--out", "{new}", "--to", "parquet"), ("find", "--key", "k")], ids=str
)
def test_no_command_passes_over_the_tier_in_silence(pylog, active, tmp_path, words):
    name, *options = (word.format(new=tmp_path / "new") for word in words)
    disk = active.folder / "local" / "b1"
    result = pylog(name, disk, "--topic", "stock_levels", *options)
    assert result.exit_code == ExitCode.PARTLY_FAILED
    said = " ".join((result.stderr + result.stdout).split())
    assert "offsets 0 to 964 are in no segment here" in said
    assert "in 2 segments by __remote_log_metadata-2" in said
    if name == "export":
        pylog.done(name, disk, "--topic", "stock_levels", *options, "--allow-data-loss")


@pytest.mark.thorough
def test_a_diagnosis_says_which_logs_begin_in_the_tier(pylog, active):
    disk = active.folder / "local" / "b1"
    for role in ("broker", "mirror"):
        said = pylog("doctor", disk, "--role", role).stdout
        assert "1 log begins in the tier" in said
        assert "offsets 0 to 964 of stock_levels-0." in said


@pytest.mark.thorough
def test_a_diagnosis_names_the_partitions_that_list_segments_elsewhere(pylog, tmp_path):
    case = unpack_tier("elections", tmp_path)
    said = " ".join(pylog("doctor", case.folder / "local" / "b1").stdout.split())
    assert "2 logs begin in the tier" in said
    for number in (0, 1):
        assert f"__remote_log_metadata-{number}, which lists its segments, is in none" in said
    roots = [case.folder / "local" / name for name in ("b1", "b2", "b3")]
    said = pylog("doctor", *roots, "--output", "json").stdout
    assert "begin in the tier" in said
    assert "which lists its segments" not in said


@pytest.mark.thorough
def test_what_was_uploaded_is_explained(pylog, active, tmp_path):
    whole = unpack_tier("plain", tmp_path)
    for case, words in (
        (active, "by __remote_log_metadata-2 it has the offsets below 965, 0 of 1 segment here"),
        (whole, "by __remote_log_metadata-0 it has the offsets below 832, 2 of 3 segments here"),
    ):
        said = pylog("explain", case.folder / "local" / "b1", "--topics", "stock_*").stdout
        assert words in " ".join(said.split())


def test_tier_and_disk_are_one_log(pylog, active):
    disk = active.folder / "local" / "b1"
    words = ("cat", active.archive, "--topic", "stock_levels", "-f", "%o\n")
    alone = pylog.done(*words).stdout_bytes.split()
    joined = pylog.done(*words, "--with-local", disk).stdout_bytes.split()
    assert alone == [b"%d" % offset for offset in range(965)]
    assert joined[:965] == alone
    assert joined == [b"%d" % offset for offset in range(len(joined))]


def test_a_look_says_that_it_is_a_tier(pylog, active):
    result = pylog.done("inspect", active.archive)
    assert result.stdout.splitlines()[0].startswith(str(active.archive))
    assert ": a tier\n" in result.stdout.replace("\n  ", " ")
    assert "not cleanly shut down" not in result.stdout
    (row,) = lines_of(pylog.done("inspect", active.archive, "--output", "json"), "partition")
    assert (row["log_start_offset"], row["log_end_offset"], row["segments"]) == (0, 965, 2)
    assert row["topic_id"] is not None


def test_segments_that_do_not_count_are_listed_with_the_reason(pylog, deleted):
    rows = lines_of(pylog("inspect", deleted.archive, "--segments", "--output", "json"), "segment")
    (broken,) = (row for row in rows if not row["is_complete"])
    assert broken["error"] == "has no object .log"
    assert len({row["topic_id"] for row in rows if row["topic"] == "page-views"}) == 2


def test_a_name_of_two_topics_needs_an_id(pylog, deleted):
    result = pylog("cat", deleted.archive, "--topic", "page-views")
    assert result.exit_code == ExitCode.USAGE
    assert "2 topics of the name page-views" in result.stderr
    # Of the location there is the place alone.
    assert "archive(" not in result.stderr
    ids = [row["topic_id"] for row in deleted.truth["alone"] if row["topic"] == "page-views"]
    counts = [
        len(
            pylog.done(
                *("cat", deleted.archive, "--topic", "page-views", "-f", "%o\n"),
                *("--topic-id", topic_id),
            ).stdout_bytes.split()
        )
        for topic_id in ids
    ]
    assert counts == [
        sum(last - first + 1 for first, last, _ in row["ranges"])
        for row in deleted.truth["alone"]
        if row["topic"] == "page-views"
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TierCase:
    """A topic of which the disk still has what was uploaded."""
    return unpack_tier("plain", tmp_path_factory.mktemp("tier"))


@pytest.mark.thorough
def test_a_dump_of_a_tier_is_that_of_the_disk(pylog, whole):
    words = ("--topic", "stock_levels", "--partition", 1, "--until", 1000, "--output", "json")
    tier = lines_of(pylog.done("dump", whole.archive, *words))
    disk = lines_of(pylog.done("dump", whole.folder / "local" / "b1", *words))
    assert tier == disk
    assert len([row for row in tier if row["type"] == "record"]) == 1000


def test_an_index_in_a_tier_is_dumped_as_a_file_of_the_partition(pylog, whole):
    name = "stock_levels-0/00000000000000000422.index"
    tier = pylog.done("dump", f"archive+{whole.archive}/{name}").stdout
    assert tier == pylog.done("dump", whole.folder / "local" / "b1" / name).stdout


def test_a_key_is_found_in_a_tier_as_on_the_disk(pylog, whole):
    key, disk = ("--topic", "stock_levels", "--key", "k67"), whole.folder / "local" / "b1"

    def versions(*words: object) -> list[tuple[object, ...]]:
        rows = pylog.rows("find", *words, *key, kind="version")
        names = ("partition", "offset", "timestamp", "key", "value")
        return [tuple(row[name] for name in names) for row in rows]

    of_disk = versions(disk)
    ends = {0: 832, 1: 1241}  # where the tier ends
    alone = versions(whole.archive)
    assert alone == [row for row in of_disk if row[1] < ends[row[0]]]
    assert alone
    assert versions(whole.archive, "--with-local", disk) == of_disk


@pytest.mark.thorough
def test_an_encrypted_tier_is_verified_with_its_key(pylog, tmp_path):
    case = unpack_tier("aiven_aes", tmp_path)
    result = pylog("verify", case.archive, "--engine", "local")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    assert "is encrypted for the key 'k1'" in result.stdout.replace("\n", " ")
    key = ("--decryption-key", case.key)
    row = pylog.row("verify", case.archive, *key, "--deep", "--fail-on", "info", kind="run")
    assert (row["done"], row["findings"]) == (2, [])
    log = min(case.archive.rglob("*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    result = pylog("verify", case.archive, *key, "--output", "json")
    assert result.exit_code == ExitCode.PARTLY_FAILED
    errors = [row["error"] for row in lines_of(result, "result") if row["error"]]
    assert len(errors) == 1
    assert log.name in errors[0]
    assert "authentication code" in errors[0]


@pytest.mark.thorough
def test_a_part_of_a_segment_in_a_tier_misses_no_index(pylog, tmp_path):
    case = unpack_tier("elections_rolls", tmp_path)
    for disk in ((), ("--with-local", case.folder / "local" / "b3")):
        row = pylog.row("verify", case.archive, *disk, "--deep", kind="run")
        assert row["findings"] == []


def test_a_ledger_inside_of_a_tier_is_refused(pylog, whole):
    result = pylog("verify", whole.archive, "--ledger", whole.archive / "ledger")
    assert result.exit_code == ExitCode.USAGE
    assert "lies inside" in result.stderr


@pytest.mark.parametrize("words", [("compact", "--role", "broker"), ("doctor",), ("survey",)])
def test_other_commands_refuse_a_tier(pylog, active, words):
    command, *others = words
    for root in (active.archive, f"archive+{active.archive}"):
        result = pylog(command, root, *others)
        assert result.exit_code in {ExitCode.USAGE, ExitCode.REFUSED}, result.stdout
        assert "is a tier" in result.stderr or "no broker starts on it" in result.stderr


def test_options_of_a_tier_are_refused_for_a_log_directory(pylog, active):
    disk = active.folder / "local" / "b1"
    result = pylog("cat", disk, "--topic", "audit.log", "--with-local", disk)
    assert result.exit_code == ExitCode.USAGE
    assert "is no tier" in result.stderr


def test_a_tier_is_exported_with_the_disk(pylog, active, tmp_path):
    out = tmp_path / "out"
    result = pylog.done(
        *("export", active.archive, "--topic", "stock_levels", "--out", out, "--to", "parquet"),
        *("--with-local", active.folder / "local" / "b1"),
    )
    (truth,) = (row for row in active.truth["partitions"] if row["topic"] == "stock_levels")
    assert f"{truth['records']:,} records" in result.stdout
