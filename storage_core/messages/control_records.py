"""The control records of ``__cluster_metadata`` and its snapshots, as in Kafka 4.4.

Kafka's quorum writes them: who leads it, what a snapshot begins and ends with, who may vote. Their
key is that of every control record; the value is the message, whose first field is its version.
Sources: ``ControlRecordUtils``, ``org.apache.kafka.common.message``.
"""

from collections.abc import Mapping
from typing import Final

from storage_core.formats.control import ControlType
from storage_core.messages.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Message,
    RecordType,
    Struct,
)

_VERSION: Final = Field("version", INT16)
_VOTER: Final = Struct(Field("voter_id", INT32), Field("voter_directory_id", UUID, since=1))
_ENDPOINT: Final = Struct(Field("name", STRING), Field("host", STRING), Field("port", UINT16))
_RANGE: Final = Struct(Field("min_supported_version", INT16), Field("max_supported_version", INT16))

# By type of control record.
CONTROL_RECORDS: Final[Mapping[int, RecordType]] = {
    ControlType.LEADER_CHANGE: RecordType(
        "LEADER_CHANGE",
        Message(
            fields=Struct(
                _VERSION,
                Field("leader_id", INT32),
                Field("voters", ArrayOf(_VOTER)),
                Field("granting_voters", ArrayOf(_VOTER)),
            ),
            newest=1,
        ),
    ),
    ControlType.SNAPSHOT_HEADER: RecordType(
        "SNAPSHOT_HEADER",
        Message(fields=Struct(_VERSION, Field("last_contained_log_timestamp", INT64))),
    ),
    ControlType.SNAPSHOT_FOOTER: RecordType("SNAPSHOT_FOOTER", Message(fields=Struct(_VERSION))),
    ControlType.KRAFT_VERSION: RecordType(
        "KRAFT_VERSION", Message(fields=Struct(_VERSION, Field("kraft_version", INT16)))
    ),
    ControlType.KRAFT_VOTERS: RecordType(
        "KRAFT_VOTERS",
        Message(
            fields=Struct(
                _VERSION,
                Field(
                    "voters",
                    ArrayOf(
                        Struct(
                            Field("voter_id", INT32),
                            Field("voter_directory_id", UUID),
                            Field("endpoints", ArrayOf(_ENDPOINT)),
                            Field("kraft_version_feature", _RANGE),
                        )
                    ),
                ),
            )
        ),
    ),
}
