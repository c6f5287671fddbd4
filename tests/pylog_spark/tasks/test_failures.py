from pylog_spark.tasks.message import attempt_directory
from storage_core.errors import StorageError

ROW = {
    "root": "/log",
    "topic": "t",
    "partition": 0,
    "directory": "/log/t-0",
    "kind": "partition",
    "error_class": None,
    "error": None,
}
NAME = {name: ROW[name] for name in ("root", "topic", "partition", "directory")}


def test_a_directory_has_its_name_beside_what_was_made_of_it():
    row = attempt_directory(ROW, lambda: {"status": "planned"})
    assert row.pop("duration_ms") >= 0
    assert row == NAME | {"status": "planned"}


def test_the_error_of_a_listing_is_handed_on_and_nothing_is_tried():
    tried = []
    failed = {"error_class": "StorageError", "error": "/log: Input/output error"}
    row = attempt_directory(ROW | failed, lambda: tried.append(1) or {})
    assert row == NAME | failed | {"status": "failed", "duration_ms": row["duration_ms"]}
    assert tried == []


def test_a_directory_fails_or_is_refused_by_an_error():
    def work():
        raise StorageError("/log/t-0", "no")

    assert attempt_directory(ROW, work)["status"] == "failed"
    refused = attempt_directory(ROW, work, lambda _: "SWITCHED_OFF")
    assert (refused["status"], refused["reason"]) == ("skipped", "SWITCHED_OFF")
