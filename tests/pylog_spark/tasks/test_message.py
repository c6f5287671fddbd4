import json
import logging
from dataclasses import dataclass, replace

import pytest

from pylog_spark.rows import Number, Text, batches_of, column, schema_of
from pylog_spark.schemas import Failure
from pylog_spark.tasks.message import (
    PIECE_BYTES,
    TaskMessage,
    attempt,
    cut_batches,
    described_steps,
    fill,
    join_messages,
)
from storage_core.commit import CommitPlan, SyncDirectory
from storage_core.errors import StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(TaskMessage):
    size: Number = column("a size")
    text: Text = column("a text")


HEAD = Answer(ordinal=7)


def test_an_answer_has_its_head_and_the_time_it_took():
    answer = attempt(HEAD, lambda head: replace(head, size=3))
    assert answer.duration_ms >= 0
    assert replace(answer, duration_ms=0) == Answer(ordinal=7, size=3, duration_ms=0)
    assert not answer.failure


def test_an_error_is_a_message_too():
    def work(_head: Answer) -> Answer:
        raise StorageError("/log/t-0", "no")

    answer = attempt(HEAD, work)
    assert (answer.ordinal, answer.size) == (7, None)
    assert answer.failure.error_class == "StorageError"
    assert "/log/t-0" in (answer.failure.error or "")


def test_a_commit_fills_columns_of_its_message_only():
    assert fill(HEAD, {"size": 3, "error": "no"}) == Answer(
        ordinal=7, size=3, failure=Failure(error="no")
    )
    with pytest.raises(KeyError, match="sizes"):
        fill(HEAD, {"sizes": 3})


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
@pytest.mark.parametrize("ledger", [None, "/ledger"])
def test_operations_are_described_for_a_ledger_or_the_log(ledger, level, caplog):
    caplog.set_level(level, "pylog_spark")
    steps = CommitPlan(location="/log/t-0", operations=(SyncDirectory(reason="durable"),))
    row = {"operation": "SyncDirectory", "reason": "durable"}
    is_asked = ledger is not None or level == logging.INFO
    assert described_steps(steps, ledger) == (json.dumps([row]) if is_asked else None)


def test_a_failure_that_a_message_comes_with_is_not_logged_again(caplog):
    caplog.set_level(logging.INFO, "pylog_spark")
    failed = replace(HEAD, failure=Failure(error_class="E", error="no"))
    attempt(failed, lambda head: head)
    assert caplog.records == []
    attempt(failed, lambda head: replace(head, failure=Failure(error_class="E", error="other")))
    assert [record.getMessage() for record in caplog.records] == ["other"]


def test_a_message_of_any_size_arrives_whole():
    sent = [replace(HEAD, text="x" * (2 * PIECE_BYTES)), replace(HEAD, ordinal=8, duration_ms=1)]
    pieces = list(cut_batches(batches_of(Answer, sent)))
    assert sum(piece.num_rows for piece in pieces) > len(sent)
    assert list(join_messages(Answer, pieces)) == sent
    assert schema_of(Answer).names[:2] == ["ordinal", "duration_ms"]
