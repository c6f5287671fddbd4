"""What a store refuses in the last step of a night hides nothing of the night."""

import pytest

from pylog_spark.exit_code import ExitCode
from storage_core.store.s3_objects import S3ObjectStore
from tests.jobs.spark_programs import write_config
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.cli.test_jobs import lines_of
from tests.pylog_spark.managed_roots import managed_twin
from tests.s3.fault_proxy import Fault, FaultKind

NAME = "clean-headers-none-s101"


@pytest.fixture
def server(moto, server):
    """moto alone: it is about what we do with the answers."""
    if server is not moto:
        pytest.skip("one server will do")
    return server


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "code"), [(FaultKind.DENY, "AccessDenied"), (FaultKind.ABSENT, "Not Found")]
)
def test_a_night_whose_uploads_cannot_be_listed_says_what_it_did(
    pylog, server, bucket, tmp_path, kind, code
):
    origin = broker_directory(tmp_path / "log", [NAME])
    twin = managed_twin(origin, f"{bucket}/root")
    config = write_config(origin, tmp_path / "topics.yaml")
    fault = Fault(kind=kind, operation="GET (encoding-type|prefix|uploads)", times=99)
    server.faults.append(fault)
    words = ("--role", "managed", "--engine", "local", "--config", config, "--output", "json")
    result = pylog("run", twin.location, *words, "--now-ms", FIRST_ROUNDS_MS)
    assert fault.hits > 0
    assert result.exit_code == ExitCode.DONE, result.stderr
    row, run = lines_of(result)
    assert (row["topic"], row["status"], run["done"]) == (NAME, "done", 1)
    [note] = [note for note in run["notes"] if "unfinished uploads" in note]
    assert note.startswith(f"{twin.location}: parts of unfinished uploads may stay")
    assert code in note


@pytest.mark.thorough
def test_a_purge_that_cannot_list_the_root_is_a_row_beside_the_others(
    pylog, server, bucket, tmp_path
):
    origin = broker_directory(tmp_path / "log", [NAME])
    twins = [managed_twin(origin, f"{bucket}/{name}") for name in ("one", "two")]
    config = write_config(origin, tmp_path / "topics.yaml")
    leftover = "one/.pylog-probe/"
    server.faults.append(Fault(kind=FaultKind.DENY, operation="LIST", key=leftover, times=99))
    purged = S3ObjectStore(twins[1].location)
    server.faults.append(
        Fault(kind=FaultKind.DENY, operation="DELETE_MANY|DELETE|PUT.*", key="two/purged", times=99)
    )
    words = ("--role", "managed", "--engine", "local", "--config", config, "--output", "json")
    locations = [twin.location for twin in twins]
    result = pylog("run", *locations, *words, "--now-ms", FIRST_ROUNDS_MS)
    *rows, run = lines_of(result)
    done = {(row["root"], row["status"]) for row in rows if row["topic"] == NAME}
    assert done == {(location, "done") for location in locations}
    assert any("remains of killed writes stay" in note for note in run["notes"])
    [failed] = [row for row in rows if row["status"] == "failed"]
    assert (failed["root"], failed["topic"]) == (purged.url, None)
    assert result.exit_code == ExitCode.PARTLY_FAILED
