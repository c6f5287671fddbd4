"""One plan for log directories, in an order in which nothing is lost."""

from storage_core.catalog.roles import Role
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.finding_kinds import Cure
from storage_core.maintenance.verification.findings import Severity
from storage_core.maintenance.verification.prescription import (
    Complaint,
    Prescription,
    StartCut,
    prescribe,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOTH = "pylog recover /d1 /d2 --role broker --salvage /d1-salvage"


def complaint(cure: Cure, command: str, partition=A0, severity=Severity.ERROR, root="/d1"):
    return Complaint(root=root, partition=partition, severity=severity, cure=cure, command=command)


def cut(partition=A0, size_bytes=70, *, is_doubtful=True, root="/d1", records=0) -> StartCut:
    return StartCut(
        root=root,
        partition=partition,
        size_bytes=size_bytes,
        is_doubtful=is_doubtful,
        records=records,
    )


def plan(*complaints: Complaint, cuts=(), sizes=None, roots=("/d1", "/d2")) -> list[str]:
    of_broker = dict.fromkeys(roots, Role.BROKER)
    return list(prescribe(of_broker, complaints, list(cuts), sizes or {}).commands)


def test_nothing_is_prescribed_for_warnings():
    assert plan(complaint(Cure.CUT, "pylog x", severity=Severity.WARN)) == []


def test_what_is_set_aside_goes_after_the_logs_that_are_cut_with_a_word():
    commands = plan(
        complaint(Cure.SET_ASIDE, "mv /d1/c /d1/c.broken && pylog x", None, Severity.FATAL),
        complaint(Cure.CUT, "pylog y"),
        complaint(Cure.REBUILD, "rm -f i && pylog z", B0),
        complaint(Cure.REBUILD, "rm -f j && pylog z", B0),
        sizes={("/d1", A0): 900},
    )
    cut_a = f"{BOTH} --topics a --from-start --allow-truncate --max-truncate-bytes 900"
    assert commands == [
        "rm -f i && rm -f j && pylog z",
        f"{cut_a} --dry-run",
        cut_a,
        f"mv /d1/c /d1/c.broken && {BOTH}",
    ]


def test_what_a_start_would_cut_is_shown_first_and_kept():
    commands = plan(
        complaint(Cure.SET_ASIDE, "mv /d1/c /d1/c.broken && pylog x", None, Severity.FATAL),
        cuts=[cut(), cut(B0, 40, root="/d2")],
    )
    limited = f"{BOTH} --allow-truncate --max-truncate-bytes 70"
    assert commands == [f"{limited} --dry-run", f"mv /d1/c /d1/c.broken && {limited}"]


def test_a_log_that_a_person_has_to_decide_about_is_not_cut_with_the_others():
    commands = plan(complaint(Cure.NONE, "", A1, Severity.FATAL), cuts=[cut(A1, 900), cut(B0, 40)])
    cut_b = f"{BOTH} --topics b --allow-truncate --max-truncate-bytes 40"
    assert commands == [f"{cut_b} --dry-run", cut_b]
    assert plan(complaint(Cure.NONE, "", A1, Severity.FATAL), cuts=[cut(A1, 900)]) == []


def test_a_torn_log_is_not_whole_enough_to_build_an_index_from():
    commands = plan(
        complaint(Cure.REBUILD, "rm -f i && pylog z"),
        complaint(Cure.CUT, "pylog y", severity=Severity.WARN),
        complaint(Cure.RECOVER, "pylog w", A1),
    )
    cut_a = f"{BOTH} --topics a --from-start --allow-truncate --max-truncate-bytes 0"
    assert commands == [f"{cut_a} --dry-run", f"rm -f i && {cut_a}"]
    assert (
        plan(complaint(Cure.REBUILD, "rm -f i && pylog z"), cuts=[cut(is_doubtful=False)])
        == commands
    )


def test_nothing_is_prescribed_that_ends_at_once():
    unreadable = Complaint(
        root="/d1",
        partition=B0,
        severity=Severity.ERROR,
        cure=Cure.NONE,
        command="",
        is_unreadable=True,
    )
    fatal = complaint(Cure.NONE, "", A1, Severity.FATAL)
    assert plan(fatal, complaint(Cure.REBUILD, "rm -f i && pylog z", A1)) == []
    rebuilt = [complaint(Cure.REBUILD, f"pylog {each}", each) for each in (A0, B0)]
    assert plan(unreadable, *rebuilt) == [f"pylog {A0}"]
    of_broker = dict.fromkeys(("/d1", "/d2"), Role.BROKER)
    crc = complaint(Cure.CUT, "pylog y", A1)
    hindered = prescribe(of_broker, [*rebuilt, crc], [cut(records=3)], {}, {"/d1", "/d2"})
    assert hindered == Prescription(commands=(f"pylog {B0}",))


def test_the_readable_records_that_a_plan_cuts_are_counted():
    of_broker = dict.fromkeys(("/d1", "/d2"), Role.BROKER)
    crc = complaint(Cure.CUT, "pylog y")
    cuts = [cut(records=3), cut(B0, records=4, root="/d2"), cut(A1, records=0)]
    counted = prescribe(of_broker, [crc], cuts, {}, from_start={("/d1", A0): 9, ("/d1", B0): 5})
    assert counted.cut_records == {("/d1", A0): 9, ("/d2", B0): 4}
    by_people = complaint(Cure.NONE, "", B0, Severity.FATAL)
    counted = prescribe(of_broker, [by_people], cuts, {}, from_start={("/d1", A0): 9})
    assert counted.cut_records == {("/d1", A0): 3}


def test_a_copy_is_cut_as_a_copy_and_never_started():
    command = complaint(Cure.CUT, "pylog y")
    roots = {"/d1": Role.MIRROR, "/d2": Role.BROKER}
    look, only = prescribe(roots, [command], [cut()], {}).commands
    assert only.startswith("pylog recover /d1 --role mirror --salvage /d1-salvage --topics a ")
    assert look == f"{only} --dry-run"


def test_a_topic_of_several_disks_of_a_broker_is_recovered_by_one_command():
    commands = plan(
        complaint(Cure.CUT, "pylog y"),
        complaint(Cure.RECOVER, "pylog w", A1, root="/d2"),
        complaint(Cure.RECOVER, "pylog w", B0, root="/d2"),
        sizes={("/d1", A0): 900, ("/d2", A1): 1000},
    )
    cut_a = f"{BOTH} --topics a --from-start --allow-truncate --max-truncate-bytes 1000"
    assert commands == [f"{cut_a} --dry-run", cut_a, f"{BOTH} --topics b --from-start"]
