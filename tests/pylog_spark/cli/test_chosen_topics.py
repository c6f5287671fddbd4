"""``--topics`` and ``--exclude`` of every command that has them: names and patterns of nothing."""

from pathlib import Path
from typing import Final

import pytest

from storage_core.catalog.topic_filter import is_pattern, nearest_name, unmatched_globs
from tests.kit.golden_data import Golden
from tests.kit.source_disk import write_properties

_ID: Final = "oQ-_Byz0SxiFgq7qKrX0Rw"  # of a topic, and of a segment in a tier
_NOW: Final = ("--now-ms", 2 * 10**12)
_JOB: Final = ("{log}", "--role", "broker", *_NOW, "--engine", "local", "--assume-defaults", "*")
# How each command that chooses topics is called, and does nothing.
CALLS: Final = {
    "inspect": ("inspect", "{log}"),
    "free": ("free", "{log}", *_NOW, "--engine", "local"),
    "groups": ("groups", "{log}", *_NOW),
    "transactions": ("transactions", "{log}", *_NOW),
    "explain": ("explain", "{log}", *_NOW),
    "survey": ("survey", "{log}", *_NOW, "--engine", "local"),
    "verify": ("verify", "{log}", *_NOW, "--engine", "local"),
    "scrub": ("scrub", "{tier}", *_NOW, "--engine", "local"),
    "doctor": ("doctor", "{log}", *_NOW, "--engine", "local"),
    "audit": ("audit", "{log}", *_NOW, "--engine", "local"),
    "differences": ("differences", "{log}", "--engine", "local"),
    "copies": ("copies", "{log}", "--copy", "{done}", "--engine", "local"),
    "timeline": ("timeline", "{log}"),
    "run": ("run", *_JOB, "--dry-run"),
    "recover": ("recover", *_JOB, "--dry-run"),
    "retain": ("retain", *_JOB, "--dry-run"),
    "compact": ("compact", *_JOB, "--dry-run"),
    "heal": ("heal", *_JOB, "--donor", "{done}"),
    "undo": ("undo", "RUN", "--trash", "{trash}", "--dry-run"),
    "purge": ("purge", "{log}", "--role", "broker", *_NOW, "--dry-run"),
    "ingest": (
        *("ingest", "{log}", "{new}", "--sync-stopped", "--settle", "1s"),
        *("--engine", "local", "--dry-run"),
    ),
    "materialize": ("materialize", "{managed}", "{plain}", "--engine", "local", "--dry-run"),
    "transplant": (
        *("transplant", "{log}", "--to", "{done}", "--topics", "events", *_NOW, "--dry-run"),
    ),
    "attach": ("attach", "{tier}", "--into", "{formatted}", "--dry-run"),
    "config init": ("config", "init", "{log}"),
    "salvage show": ("salvage", "show", "{salvage}"),
    "salvage replay": ("salvage", "replay", "{salvage}", "{log}", "--role", "broker", "--dry-run"),
}


@pytest.fixture(scope="module")
def places(pylog, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A log directory, a trash with a run, a managed root, and names of what is not there."""
    made = tmp_path_factory.mktemp("topics")
    log = Golden("broker-dir").unpack(made)
    done = Golden("broker-dir").unpack(made / "done")
    trash = made / "trash"
    job = (done, "--role", "broker", *_NOW, "--engine", "local", "--assume-defaults", "*")
    more = ("--set", "retention.ms=1", "--trash", trash, "--max-delete-ratio", 1)
    overridden = ("--override", "CLOCK_PAST_RETENTION")
    assert pylog("retain", *job, *more, *overridden, "--topics", "events").exit_code == 0
    managed = made / "managed"
    taken = ("--sync-stopped", "--settle", "0s", "--engine", "local")
    assert pylog("ingest", log, managed, *taken).exit_code == 0
    damaged = Golden("broker-dir").unpack(made / "damaged")
    log_file = min((damaged / "events-0").glob("*.log"))
    log_file.write_bytes(log_file.read_bytes()[:-1] + b"?")
    cut = ("--from-start", "--allow-truncate", "--salvage", made / "salvage", "--role", "broker")
    assert pylog("recover", damaged, *cut, *_NOW, "--engine", "local").exit_code == 0
    (made / "formatted").mkdir()
    write_properties(made / "formatted", 1)
    run = next(path.name for path in trash.iterdir() if path.name[0].isdigit())
    segment = made / "tier" / f"events-0-{_ID}" / f"{0:020}-{_ID}"
    segment.parent.mkdir(parents=True)
    for kind in ("log", "index", "timeindex", "snapshot"):
        segment.with_suffix(f".{kind}").touch()
    segment.with_suffix(".leader_epoch_checkpoint").write_text("0\n1\n0 0\n")
    names = {
        "tier": made / "tier",
        "log": log,
        "done": done,
        "trash": trash,
        "managed": managed,
        "salvage": made / "salvage",
        "formatted": made / "formatted",
    }
    return {
        **{name: str(path) for name, path in names.items()},
        **{name: str(made / name) for name in ("new", "plain")},
        "RUN": run,
    }


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest, places: dict[str, str]) -> list[str]:
    """One command line."""
    words = [str(word) for word in CALLS[request.param]]
    return [places["RUN"] if word == "RUN" else word.format(**places) for word in words]


@pytest.mark.sampled(1)
def test_a_name_that_no_topic_has_is_wrong_usage(pylog, call):
    result = pylog(*call, "--topics", "evnets")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean events?" in result.stderr
    assert "'[e]vnets'" in result.stderr
    result = pylog(*call, "--topics", "events", "--topics", "nothing-like-it")
    assert result.exit_code == 2
    assert "did you mean" not in result.stderr


@pytest.mark.thorough
def test_a_name_is_left_out_only_if_it_is_no_typo(pylog, call):
    result = pylog(*call, "--exclude", "evnets")
    assert result.exit_code == 2
    assert "did you mean events?" in result.stderr
    plain = pylog(*call)
    result = pylog(*call, "--exclude", "nothing-like-it")
    assert result.exit_code == plain.exit_code
    said = " ".join(f"{result.stdout} {result.stderr}".replace("#", "").split())
    assert "--exclude nothing-like-it matches no topic in" in said


@pytest.mark.sampled(2)
def test_a_pattern_that_matches_nothing_is_said(pylog, call):
    result = pylog(*call, "--topics", "events", "--topics", "evnets*")
    assert result.exit_code != 2, result.stderr
    said = " ".join(f"{result.stdout} {result.stderr}".replace("#", "").split())
    assert "--topics 'evnets*' matches no topic in" in said


@pytest.mark.thorough
def test_a_name_is_looked_for_in_all_roots(pylog, broker_dir: Path, tmp_path: Path):
    other = tmp_path / "other"
    (other / "elsewhere-0").mkdir(parents=True)
    result = pylog("inspect", broker_dir, other, "--topics", "elsewhere", "--topics", "events")
    assert "elsewhere-0" in result.stdout
    assert pylog("inspect", broker_dir, other, "--topics", "elsewher").exit_code == 2


def test_records_of_a_topic_name_the_nearest(pylog, broker_dir: Path, tmp_path: Path):
    for words in (
        ("cat", "evnets", "--root", broker_dir),
        ("export", "evnets", tmp_path / "out", "--root", broker_dir, "--to", "csv"),
        ("find", broker_dir, "--topic", "evnets", "--key", "k"),
    ):
        result = pylog(*words)
        assert result.exit_code == 2
        assert "did you mean events?" in result.stderr


def test_globs_and_names():
    assert [is_pattern(glob) for glob in ("orders", "o*", "o?", "[o]rders")] == [False, *[True] * 3]
    assert unmatched_globs(["a", "b*", "[c]"], {"b1", "c"}) == ["a"]
    assert nearest_name("orders-0", {"orders", "payments"}) == "orders"
    assert nearest_name("x", {"orders"}) is None
