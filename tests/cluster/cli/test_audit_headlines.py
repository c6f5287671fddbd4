"""The first and the last lines of ``pylog audit``: what is lost, and what comes next."""

import shutil

import pytest

from pylog_spark.exit_code import ExitCode
from tests.kit.cluster_truth import Cluster
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import Disks


def text_of(result) -> str:
    """Return what a person reads, lines joined."""
    return " ".join(result.stdout.split())


def test_what_was_perhaps_committed_is_no_good_news(pylog, tmp_path):
    first, second, _ = Cluster("leader-killed", tmp_path).roots
    text = text_of(pylog("audit", first, second))
    assert text.startswith("Whoever leads, nothing is lost that was committed for sure;")
    assert "perhaps committed: after the last checkpoint" in text
    assert "never committed:" not in text


@pytest.mark.thorough
def test_a_loss_names_its_offsets_and_the_next_command(pylog, tmp_path):
    roots = Cluster("wiped-disk", tmp_path).roots
    text = text_of(pylog("audit", *roots, "--topics", "ledger"))
    assert text.startswith("Committed records of 3 partitions are lost whoever leads.")
    assert "broker 1 as leader loses 26 records (all committed, offsets 117 to 142," in text
    assert "only broker 3 was in sync of 3 partitions, and has no log here" in text
    places = " ".join(map(str, roots))
    assert text.endswith(f"next, for whom the controller elects: pylog audit {places} --up 1,2,3")


@pytest.mark.thorough
def test_the_way_to_leaders_that_lose_least_is_written_in_its_order(pylog, tmp_path):
    roots = Cluster("wiped-disk", tmp_path / "c").roots
    out = tmp_path / "out"
    text = text_of(pylog("audit", *roots, "--up", "1,2,3", "--election-out", out))
    assert text.startswith("Start 1, then 2, elect leaders of 3 partitions by hand, then start 3:")
    steps = ("Start 1, then 2. While", "kafka-reassign-partitions.sh", "kafka-leader-election.sh")
    places = [
        text.index(step)
        for step in (*steps, "Then start 3, only when the first command, with --verify")
    ]
    assert places == sorted(places)
    assert "restore.json" in text


@pytest.mark.thorough
def test_partitions_of_a_directory_that_was_not_named_are_no_good_news(pylog, tmp_path):
    first, last = Disks(unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path)).roots
    text = text_of(pylog("audit", first))
    assert text.startswith("No log of 4 partitions lies in the directories that were named: these")
    assert "no committed record is lost" not in text
    note = "broker 1 registered 2 log directories, here 1: without the others a start makes 4"
    assert note in text
    assert note not in text_of(pylog("audit", first, "--topics", "quiet"))
    assert text_of(pylog("audit", first, last)).startswith(
        "Whoever leads, no committed record is lost."
    )


@pytest.mark.thorough
def test_copies_of_no_broker_name_what_each_would_lose(pylog, tmp_path):
    roots = Cluster("behind", tmp_path).roots
    for root in roots:
        (root / "meta.properties").unlink()
        shutil.rmtree(root / "__cluster_metadata-0")
    text = text_of(pylog("audit", *roots, "--topics", "page-views"))
    assert "nothing says ISR, epochs and assignment" in text
    assert "as leader loses 116 records" in text


@pytest.mark.thorough
def test_what_brokers_have_that_were_not_read_is_no_good_news(pylog, tmp_path):
    first = Cluster("clean", tmp_path).roots[0]
    text = text_of(pylog("audit", first, "--up", "1,2"))
    assert "What only broker 2, 3 has is not counted: no directory was read." in text


@pytest.mark.thorough
def test_losses_under_any_leader_make_the_exit_status(pylog, tmp_path):
    roots = Cluster("wiped-disk", tmp_path).roots
    ledger = ("--topics", "ledger")
    assert pylog("audit", *roots, *ledger).exit_code == ExitCode.FINDINGS
    assert pylog("audit", *roots, *ledger, "--output", "json").exit_code == ExitCode.FINDINGS
    assert pylog("audit", *roots, *ledger, "--up", "1,2,3").exit_code == ExitCode.FINDINGS
    for word, status in (("fatal", ExitCode.DONE), ("never", ExitCode.DONE)):
        assert pylog("audit", *roots, *ledger, "--fail-on", word).exit_code == status
    wrong = pylog("audit", *roots, "--level", "bytes", "--fail-on", "warn")
    assert wrong.exit_code == ExitCode.USAGE
    assert "lists differences and no more" in wrong.stderr


@pytest.mark.thorough
def test_a_loss_under_the_wrong_leader_is_a_warning(pylog, tmp_path):
    first, second, _ = Cluster("leader-killed", tmp_path / "killed").roots
    assert pylog("audit", first, second).exit_code == ExitCode.DONE
    assert pylog("audit", first, second, "--fail-on", "warn").exit_code == ExitCode.FINDINGS
    roots = Cluster("clean", tmp_path / "clean").roots
    assert pylog("audit", *roots, "--fail-on", "warn").exit_code == ExitCode.DONE


@pytest.mark.thorough
def test_what_says_no_losses_needs_no_word_about_them(pylog, tmp_path):
    roots = Cluster("clean", tmp_path).roots
    for words in (("--level", "bytes"), ("--timeline",), ("--leader", "1")):
        result = pylog("audit", *roots, *words)
        assert result.exit_code in {ExitCode.DONE, ExitCode.FINDINGS}, result.stderr
