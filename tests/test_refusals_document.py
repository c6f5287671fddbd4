"""``docs/refusals.md`` and ``pylog explain CODE`` say of every code what the program says of it."""

import enum
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import pylog_spark
import storage_core
from pylog_spark.cli.explain import all_codes
from pylog_spark.cluster.audit.elections import Remark
from pylog_spark.exit_code import MEANINGS, ExitCode
from pylog_spark.outcomes import ALLOWED_BY, Reason, RunEvent
from pylog_spark.refusals import PREDICATES, REASONS, all_guards, all_remarks, way_out_of, ways_out
from storage_core.cluster.healing import DamageState
from storage_core.cluster.metadata_rebuild import UnknownPart
from storage_core.cluster.stray_adoption import StrayReason
from storage_core.cluster.transplant.plan import TransplantReason
from storage_core.coordinators.offsets_audit import CommitFinding
from storage_core.coordinators.transactions import TransactionEnding
from storage_core.maintenance.ingest.plan import LeftReason
from storage_core.maintenance.retention.plan import Hold, Predicate
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.verdict import Advice
from storage_core.messages.internal_records import Problem
from storage_core.store.bucket_settings import RemarkCode

PAGE = Path(__file__).parents[1] / "docs" / "refusals.md"
ROW = re.compile(r"^\| `([A-Za-z_-]+)` \| (.*) \| (.*) \|$", re.MULTILINE)
SOURCES = [*Path("pylog_spark").rglob("*.py"), *Path("storage_core").rglob("*.py")]


def test_every_reason_has_its_row():
    assert list(REASONS) == list(Reason)
    assert set(MEANINGS) == set(ExitCode)


def test_the_page_is_the_table():
    expected = [
        (str(code), one.means, one.way or "nothing")
        for table in (REASONS, PREDICATES, all_guards(), all_remarks())
        for code, one in table.items()
    ]
    assert ROW.findall(PAGE.read_text("utf-8")) == expected


def test_what_lifts_a_deletions_refusal_is_its_way_out():
    assert all(allowed in REASONS[Reason(reason)].way for reason, allowed in ALLOWED_BY.items())


def test_every_guard_is_explained():
    told = "".join(path.read_text("utf-8") for path in SOURCES)
    codes = set(re.findall(r'GuardRefusedError\(\s*"([A-Z_]+)"', told))
    own = Path("storage_core/errors.py").read_text("utf-8")
    codes |= set(re.findall(r'code: str = derived\("([A-Z_]+)"\)', own))
    assert {"NO_STAGING", "LEASE_HELD"} <= codes
    codes |= {*StrayReason, *DamageState, *TransplantReason, *UnknownPart}
    # And what commands say of segments, buckets, replicas, commits, transactions and records.
    codes |= {*LeftReason, *RemarkCode, *Remark, *CommitFinding, *TransactionEnding, *Problem}
    # Rows name the class of an error.
    codes |= set(re.findall(r"^class (\w+)\(\w*Error\):", own, re.MULTILINE))
    assert {"StorageError", "ContradictedAgeError"} <= codes
    assert sorted(codes - set(all_codes())) == []


def subclasses(kind: type) -> set[type]:
    return {kind, *(each for sub in kind.__subclasses__() for each in subclasses(sub))}


def test_every_code_of_the_product_is_explained():
    """All enumerations of codes, those that come later too."""
    for package in (pylog_spark, storage_core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    ours = [
        kind
        for kind in subclasses(enum.StrEnum)
        if kind.__module__.partition(".")[0] in {"pylog_spark", "storage_core"}
    ]
    # Words in front of a predicate, and what a run's two rows are.
    kinds = [kind for kind in ours if kind not in {Predicate, RunEvent}]
    codes = {str(code) for kind in kinds for code in kind}
    codes = {code for code in codes if re.fullmatch(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*", code)}
    assert {"OPEN", "PARTS_STAY", "LEADER_EPOCH_FENCED"} <= codes
    codes |= {*Advice}
    assert sorted(codes - set(all_codes()) - {str(hold) for hold in Hold}) == []


def test_every_predicate_of_explain_is_explained():
    """Those of retention have the word for the predicate in front."""
    sources = ("storage_core/maintenance/explain.py", "pylog_spark/operations/explain.py")
    told = "".join(Path(path).read_text("utf-8") for path in sources)
    calls = r"(?:blocks|unknowable|_CleaningLimit)"
    asked = calls + r'\(\s*(?:_ABOUT(?:_[A-Z]+)?,|About\.CLEANING,|code=)?\s*"([A-Z_]+)"'
    codes = {*re.findall(asked, told), *re.findall(r'held_by="([A-Z_]+)"', told)}
    assert {"DIRTY_RATIO", "ACTIVE_SEGMENT", "TIERED", "NEGATIVE_TIMESTAMP"} <= codes
    codes |= {f"{word}_{hold}" for word in Predicate for hold in Hold}
    assert all(way_out_of(code) is not None for code in codes)
    assert way_out_of("TIME_HIGH_WATERMARK") == way_out_of("NO_HIGH_WATERMARK")


def test_no_code_is_explained_with_a_hole_in_it():
    assert not [code for code, told in all_codes().items() if "{" in str(told)]


@pytest.mark.parametrize("code", [*Code, *Reason, *all_guards(), "0", "3", "143"])
def test_every_code_is_explained_offline(code: str):
    assert all(means for _, means, _ in all_codes()[code])


@pytest.mark.thorough
def test_explain_prints_a_code(pylog):
    result = pylog.done("explain", "NO_HIGH_WATERMARK", "3")
    assert "--high-watermark log-end" in result.stdout
    assert "3 (exit status): a guard refused" in result.stdout
    row = json.loads(
        pylog("explain", "UNCLEAN_SHUTDOWN", "--output", "json").stdout.splitlines()[0]
    )
    assert (row["type"], row["code"]) == ("code", "UNCLEAN_SHUTDOWN")
    lower = pylog.done("explain", "partition_strayed")
    assert lower.stdout.startswith("PARTITION_STRAYED (finding): ")
    assert "keep a copy of DIRECTORY" in " ".join(lower.stdout.split())
    for word in ("commit-expired", "Commit-Expired", "OPEN", "PARTS_STAY", "hanging"):
        assert pylog("explain", word).stdout.lower().startswith(f"{word.lower()} (remark): ")
    assert pylog("explain", "storageerror").stdout.startswith("StorageError (error): ")
    held = pylog("explain", "TIME_WITHIN_TIME")
    assert held.stdout.startswith("WITHIN_TIME (predicate): ")
    assert "--set retention.ms=MS" in held.stdout
    wrong = pylog("explain", "NO_HIGH_WATERMARKS")
    assert wrong.exit_code == 2
    assert "did you mean NO_HIGH_WATERMARK?" in wrong.stderr


def test_only_what_a_person_can_change_has_a_line():
    reasons = [*["NO_HIGH_WATERMARK"] * 3, *["NOTHING_TO_RETAIN"] * 9, None, "CONFIG_UNKNOWN"]
    (line,) = ways_out(reasons)
    assert line == (
        "NO_HIGH_WATERMARK (3): if every record in the log was replicated: `--high-watermark "
        "log-end`"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["inspect", "verify", "doctor", "explain", "survey"])
def test_the_folder_above_a_log_directory_names_it(pylog, tmp_path, command):
    below = tmp_path / "kafka-log0"
    (below / "orders-0").mkdir(parents=True)
    (below / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    result = pylog(command, tmp_path)
    assert result.exit_code == 2
    assert f"did you mean {below}? meta.properties lies there" in result.stderr
    managed = pylog("run", below, "--role", "managed", "--dry-run")
    assert managed.exit_code == 2
    assert "say --role broker" in managed.stderr
