"""The doctor, what it prints, the doctor again: for every kind of damage."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.maintenance.verification.findings import Code, Severity
from tests.kit.file_damage import Accident, Damage, damage
from tests.kit.program import run_to_end
from tests.pylog_spark.cli.prescriptions import ONLY_LOOKS, Shell, commands_in, is_for_people
from tests.storage_core.maintenance.verification.accidents import ACCIDENTS, DEEP
from tests.storage_core.maintenance.verification.log_root import (
    END_OFFSET,
    NOW_MS,
    ONLY_BROKER,
    LogRoot,
    log_root,
)

LEAST = Severity.WARN.rank
MANY = 20
# Only a person can tell what is right, or it comes from elsewhere.
FOR_PEOPLE = {
    # No command writes to a tier.
    *(code for code in Code if code.name.startswith("TIER_")),
    Code.CONTROL_RECORD_MALFORMED,
    Code.MAGIC_UNKNOWN,
    Code.RECORD_COUNT_NEGATIVE,
    Code.RECORDS_MALFORMED,
    Code.CODEC_UNKNOWN,
    Code.RECORD_OFFSET_OUTSIDE_BATCH,
    Code.RECORD_NEWER_THAN_BATCH,
    Code.NEGATIVE_TIMESTAMP,
    Code.OFFSETS_NOT_RISING,
    Code.OFFSET_BELOW_BASE,
    Code.OFFSETS_MISSING,
    Code.SEGMENT_TOO_LARGE,
    Code.EPOCH_GOES_BACK,
    Code.EPOCH_DOUBTFUL,
    Code.TRANSACTION_HANGING,
    Code.TRANSACTION_STATE_INVALID,
    Code.NO_SEGMENT,
    Code.COORDINATOR_NOT_LOADED,
    Code.SEGMENT_RENAMED,
    Code.FILE_ANCIENT,
    Code.FILE_NAME_UNPADDED,
    Code.FILE_NAME_INVALID,
    Code.FILE_UNREADABLE,
    Code.FILE_IS_FOLDER,
    Code.FILE_FORBIDDEN,
    Code.LOG_DIRECTORY_FORBIDDEN,
    Code.PARTITION_METADATA_BROKEN,
    Code.PARTITION_METADATA_EMPTY,
    Code.TOPIC_ID_INCONSISTENT,
    Code.LOG_START_BEYOND_END,
    Code.HIGH_WATERMARK_BEYOND_END,
    Code.HIGH_WATERMARKS_UNKNOWN,
    Code.CLEANER_POINT_OUTSIDE_LOG,
    Code.DIRECTORY_FOREIGN,
    Code.DIRECTORY_STRAY,
    Code.PARTITION_DUPLICATE,
    Code.PARTITION_LINKED,
    Code.PARTITION_STRAYED,
    Code.PARTITION_ABSENT,
    Code.FUTURE_ALONE,
    Code.FUTURE_PROMOTED,
    Code.FUTURE_BESIDE_LOG,
    Code.CLUSTER_METADATA_BROKEN,
    Code.BOOTSTRAP_SNAPSHOT_CUT,
    Code.FEATURE_LEVEL_UNKNOWN,
    Code.QUORUM_STATE_BROKEN,
    Code.META_PROPERTIES_MISSING,
    Code.META_PROPERTIES_BROKEN,
    Code.META_PROPERTIES_INCOMPLETE,
    Code.DIRECTORIES_INCONSISTENT,
    Code.BROKER_CONFIG_IGNORED,
    Code.CLUSTER_METADATA_CUT,
    Code.LOG_DIRECTORY_ABSENT,
    Code.NODE_ID_WRONG,
    Code.TIERED_EPOCHS_MISSING,
    Code.TOPIC_CONFIG_REFUSED,
}
# Milder than a warning: nothing has to be done, whatever could be.
MILD = {code for code in Code if KINDS[code].severity.rank < LEAST} - {Code.ZERO_TAIL}
CURED = set(Code) - FOR_PEOPLE - MILD - ONLY_LOOKS
DERIVED = {code for code in CURED if "pylog partition recover" in KINDS[code].command}
# Several partitions of one directory, so that one run mends all of them.
OF_A_LOG = {
    Code.BATCH_CRC_WRONG,
    Code.BATCH_LENGTH_IMPOSSIBLE,
    Code.TORN_TAIL,
    Code.ZERO_TAIL,
    Code.TORN_SEGMENT,
    Code.OFFSET_OVERFLOW,
    Code.SWAP_UNFINISHED,
}
OF_CHECKPOINTS = {Code.CHECKPOINT_BROKEN, Code.RECOVERY_POINT_BEYOND_END}


@pytest.fixture
def root(tmp_path: Path) -> LogRoot:
    return log_root(tmp_path / "log")


@pytest.fixture
def shell(pylog) -> Shell:
    return Shell(pylog, NOW_MS, words=ONLY_BROKER)


def bad(answer) -> list[tuple[str, str]]:
    """Return (code, message) of what is found of severity warn or worse."""
    return [(found["code"], found["message"]) for found in bad_rows(answer)]


def bad_rows(answer) -> list[dict]:
    return [f for f in answer["findings"] if Severity(f["severity"]).rank >= LEAST]


def test_every_code_is_mended_by_a_command_or_left_to_people():
    assert CURED == DERIVED | OF_A_LOG | OF_CHECKPOINTS
    assert all(KINDS[code].command for code in CURED)
    assert not any(KINDS[code].command for code in FOR_PEOPLE)


@pytest.mark.thorough
@pytest.mark.parametrize("code", sorted(DERIVED))
def test_what_is_derived_from_a_log_is_whole_after_what_the_doctor_prints(root, shell, code):
    ACCIDENTS[code](root)
    options = ["--deep"] if code in DEEP else []
    _, answer = shell.ask(root.path, *options)
    assert code.value in dict(bad(answer))
    printed = commands_in(f for f in answer["findings"] if f["code"] == code)
    assert printed
    severe = {found["severity"] for found in answer["findings"] if found["code"] == code}
    if severe & {Severity.ERROR, Severity.FATAL}:
        assert printed == answer["commands"]
    for command in printed:
        shell.run(command)
    status, healed = shell.ask(root.path, "--deep")
    assert bad(healed) == []
    assert (status, healed["advice"]) == (ExitCode.DONE, "start-broker")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", sorted(FOR_PEOPLE & set(ACCIDENTS)))
def test_what_only_a_person_can_mend_comes_with_no_command_of_ours(root, shell, code):
    ACCIDENTS[code](root)
    _, answer = shell.ask(root.path, "--deep")
    found = [finding for finding in answer["findings"] if finding["code"] == code]
    assert found
    assert commands_in(found) == []


def test_of_two_topics_of_one_name_a_partition_is_named_not_the_log_directory(root, shell):
    ACCIDENTS[Code.TOPIC_ID_INCONSISTENT](root)
    _, answer = shell.ask(root.path)
    [found] = [f for f in answer["findings"] if f["code"] == Code.TOPIC_ID_INCONSISTENT]
    assert found["fix"].endswith(
        f": move {root.path}/t-{found['partition']} out of the log directory"
    )


@pytest.mark.parametrize("code", sorted(ONLY_LOOKS & {Code.SEGMENTS_OVERLAP}))
def test_a_command_that_only_looks_is_accepted(root, shell, code):
    ACCIDENTS[code](root)
    _, answer = shell.ask(root.path)
    [command] = commands_in(f for f in answer["findings"] if f["code"] == code)
    assert shell.run(command).stdout


@pytest.mark.thorough
def test_a_person_copies_whole_lines_to_a_shell(root, tmp_path):
    """On a terminal of 40 columns, and through a shell."""
    bin_path = Path(sys.executable).parent
    ACCIDENTS[Code.TIME_INDEX_WRONG](root)

    def ask() -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{bin_path}:/usr/bin:/bin", "COLUMNS": "40", "FORCE_COLOR": "1"}
        environment |= {"HOME": str(tmp_path), "TERM": "xterm"}
        command = f"pylog doctor {root.path} --now-ms {NOW_MS} {' '.join(ONLY_BROKER)}"
        return run_to_end(["sh", "-c", command], env=environment)

    done = ask()
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "TIME_INDEX_WRONG: " in line]
    command = line.partition("rebuild it: ")[2]
    mended = run_to_end(
        ["sh", "-c", command], env={"PATH": f"{bin_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    assert mended.returncode == ExitCode.DONE, mended.stderr
    assert ask().returncode == ExitCode.DONE


def test_nothing_is_cut_to_rebuild_an_index(root, shell, pylog):
    """The log is damaged too: its own fix says so, and keeps what it cuts."""
    ACCIDENTS[Code.BATCH_CRC_WRONG](root)
    ACCIDENTS[Code.OFFSET_INDEX_WRONG](root)
    _, answer = shell.ask(root.path)
    [rebuild] = commands_in(f for f in answer["findings"] if f["code"] == Code.OFFSET_INDEX_WRONG)
    before = {path: path.read_bytes() for path in root.partition.iterdir()}
    result = pylog(*rebuild.replace("$(date +%s000)", str(NOW_MS)).split()[1:])
    assert result.exit_code == ExitCode.REFUSED
    assert "CUTS_RECORDS" in result.stderr
    assert {path: path.read_bytes() for path in root.partition.iterdir()} == before
    # What puts the log in order builds the index, too.
    look, command = answer["commands"]
    [fix] = commands_in(f for f in answer["findings"] if f["code"] == Code.BATCH_CRC_WRONG)
    assert look == f"{command} --dry-run"
    assert command == f"{fix} --max-truncate-bytes {root.log_bytes()}"


def test_what_no_loader_takes_is_removed_before_the_log_is_put_in_order(root, shell):
    ACCIDENTS[Code.BATCH_CRC_WRONG](root)
    ACCIDENTS[Code.EPOCH_FILE_BROKEN](root)
    _, answer = shell.ask(root.path)
    look, command = answer["commands"]
    assert look.endswith(" --dry-run")
    assert command.startswith(f"rm -f {root.partition / LEADER_EPOCH_FILE} && pylog recover ")


def together(tmp_path: Path, hurt: dict[int, object]) -> LogRoot:
    """Return a log directory with one partition of topic t for each way to hurt one."""
    whole = log_root(tmp_path / "log")
    partitions = []
    for number, happen in hurt.items():
        one = log_root(tmp_path / f"log{number}")
        happen(one)
        partitions.append(TopicPartition("t", number))
        shutil.rmtree(whole.path / str(partitions[-1]), ignore_errors=True)
        shutil.move(one.partition, whole.path / str(partitions[-1]))
        shutil.rmtree(one.path)
    for path in whole.path.glob("*-offset-checkpoint"):
        path.unlink()
    points = encode_offset_checkpoint(dict.fromkeys(partitions, 0))
    (whole.path / RECOVERY_POINT_FILE).write_bytes(points)
    return whole


@pytest.mark.thorough
@pytest.mark.spark
def test_damaged_logs_are_in_order_after_what_the_doctor_prints(spark, tmp_path, shell):
    codes = sorted(OF_A_LOG)
    root = together(tmp_path, {n: ACCIDENTS[code] for n, code in enumerate(codes)})
    _, answer = shell.ask(root.path)
    found = {(f["partition"], f["code"]) for f in answer["findings"]}
    assert found >= set(enumerate(code.value for code in codes))
    cuts = [command for command in answer["commands"] if "--allow-truncate" in command]
    assert [command.split()[-1] == "--dry-run" for command in cuts] == [True, False] * (
        len(cuts) // 2
    )
    for command in answer["commands"]:
        shell.run(command)
    status, healed = shell.ask(root.path, "--deep")
    # The overflow is one because offsets are missing before it.
    assert {code for code, _ in bad(healed)} <= {Code.OFFSETS_MISSING}
    assert (status, healed["advice"]) == (ExitCode.FINDINGS, "look-before-start")
    for command in healed["commands"]:
        assert command.startswith("pylog salvage replay ")
        shell.run(command.removesuffix(" --dry-run"))
    status, healed = shell.ask(root.path)
    assert (status, healed["advice"]) == (ExitCode.DONE, "start-broker")
    assert list((tmp_path / "log-salvage").rglob("cut-*.raw"))


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("code", sorted(OF_CHECKPOINTS | {Code.UNCLEAN_SHUTDOWN}))
def test_checkpoints_are_right_after_what_the_doctor_prints(spark, root, shell, code):
    ACCIDENTS[code](root)
    _, answer = shell.ask(root.path)
    [command] = commands_in(f for f in answer["findings"] if f["code"] == code)
    shell.run(command)
    status, healed = shell.ask(root.path)
    assert bad(healed) == []
    assert (status, healed["advice"]) == (ExitCode.DONE, "start-broker")
    assert code.value not in {found["code"] for found in healed["findings"]}


@pytest.mark.thorough
@pytest.mark.spark
def test_a_log_whose_tail_is_gone_is_recovered_with_a_word_about_it(spark, root, pylog, shell):
    root.write_checkpoint(REPLICATION_FILE, END_OFFSET + 7)
    _, answer = shell.ask(root.path)
    assert answer["headline"] == "The broker would start, but 1 log ends below the high watermark."
    assert answer["commands"] == []
    result = pylog("recover", root.path, "--role", "broker", "--from-start", "--now-ms", NOW_MS)
    assert result.exit_code == ExitCode.FINDINGS
    assert "t-0 at 40 instead of 47" in " ".join(result.stdout.split())
    assert "lowered" in result.stdout


@pytest.mark.thorough
@pytest.mark.spark
def test_random_damage_is_mended_by_what_the_doctor_prints(spark, tmp_path, shell):
    """One partition for each accident; those that only people can mend are moved away, as told."""
    hurt = {
        number: partial(hurt_partition, Damage(accident=accident, seed=number))
        for number, accident in enumerate(Accident)
    }
    root = together(tmp_path, hurt)
    _, answer = shell.ask(root.path, "--show", 1000)
    for found in bad_rows(answer):
        if is_for_people(found):
            shutil.rmtree(root.path / f"t-{found['partition']}", ignore_errors=True)
    _, answer = shell.ask(root.path, "--show", 1000)
    assert len(bad_rows(answer)) > MANY
    rest = commands_in(bad_rows(answer))
    for command in answer["commands"]:
        shell.run(command)
    _, healed = shell.ask(root.path, "--show", 1000)
    assert [(f["partition"], f["code"]) for f in bad_rows(healed) if f["severity"] != "warn"] == []
    for command in commands_in(bad_rows(healed)):
        assert command in rest
        shell.run(command)
    _, healed = shell.ask(root.path, "--show", 1000)
    assert bad(healed) == []


def hurt_partition(what: Damage, root: LogRoot) -> None:
    damage(root.partition, what)
