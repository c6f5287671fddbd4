"""``quorum-state``: what is written reads back, and a value that no field can have is named."""

import re

import pytest

from storage_core.checkpoint.broker_files import encode_quorum_state, parse_quorum_state
from storage_core.errors import CheckpointError


@pytest.mark.parametrize("voters", [None, (1, 2)])
def test_what_is_written_reads_back(voters):
    state = parse_quorum_state(encode_quorum_state(epoch=7, voters=voters), file="quorum-state")
    assert (state["leader_id"], state["leader_epoch"], state["voted_id"]) == (-1, 7, -1)
    assert state["data_version"] == (1 if voters is None else 0)
    assert state.get("current_voters") == (voters and [{"voterId": node} for node in voters])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"leaderEpoch":2147483648}', "leaderEpoch: expected a number up to 2147483647"),
        ('{"leaderEpoch":"7"}', 'leaderEpoch: expected a number up to 2147483647: "7"'),
        ('{"leaderId":1e400}', "leaderId: expected a number up to 2147483647: Infinity"),
        ('{"votedId":true}', "votedId: expected a number up to 2147483647: true"),
        ('{"data_version":2}', "data_version: expected a number up to 1: 2"),
        ('{"currentVoters":{"1":2}}', "currentVoters: expected objects with voterId"),
        ('{"currentVoters":[{"voterId":"x"}]}', "currentVoters: expected objects with voterId"),
        ('{"other":1}', "expected the fields of versions 0 and 1, found other"),
    ],
)
def test_a_value_that_no_field_can_have_is_named(text: str, reason: str):
    with pytest.raises(CheckpointError, match=re.escape(reason)):
        parse_quorum_state(text.encode(), file="quorum-state")
