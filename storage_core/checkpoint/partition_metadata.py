r"""``partition.metadata``: the id of the topic that a partition's directory belongs to.

::

    file = "version: 0\n" "topic_id: " id

without a newline at the end. Kafka splits a line at the colon and the white space after it, and
looks at the second part only; so do we. Source:
``org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile``.
"""

import re
from dataclasses import dataclass
from typing import Final

from storage_core.checkpoint.checkpoint_text import INT_MAX, parse_number, quote, read_lines
from storage_core.checkpoint.kafka_uuid import ZERO_UUID, parse_uuid
from storage_core.errors import CheckpointError

MAX_PARTITION_METADATA_BYTES: Final = 1 << 16
CURRENT_VERSION: Final = 0
_COLON: Final = re.compile(r":[ \t\n\v\f\r]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """What the file says.

    Attributes:
        version: Version of its form, 0 or higher.
        topic_id: The topic's id, as Kafka spells it.
    """

    version: int = CURRENT_VERSION
    topic_id: str


def parse_partition_metadata(data: bytes, *, file: str) -> PartitionMetadata:
    """Parse the file.

    Args:
        data: The whole file.
        file: Its name, for errors.

    Raises:
        CheckpointError: A line is missing or malformed, the version negative, the id no id, or
            the zero id, which no topic has.
    """
    lines = read_lines(data, file=file)
    version = parse_number(_value(lines, 1, file), INT_MAX, file=file, line=1)
    if version < 0:
        raise CheckpointError(file, 1, f"expected a version, found {version}")
    try:
        topic_id = parse_uuid(_value(lines, 2, file))
    except ValueError as error:
        raise CheckpointError(file, 2, str(error)) from error
    if topic_id == ZERO_UUID:
        raise CheckpointError(file, 2, "the zero id belongs to no topic")
    return PartitionMetadata(version=version, topic_id=topic_id)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return the bytes of the file."""
    return f"version: {metadata.version}\ntopic_id: {metadata.topic_id}".encode("ascii")


def _value(lines: list[str], number: int, file: str) -> str:
    if len(lines) < number:
        raise CheckpointError(file, number, "the line is missing")
    parts = _COLON.split(lines[number - 1])
    while parts and not parts[-1]:
        parts.pop()
    if len(parts) != 2:  # noqa: PLR2004 - name and value
        raise CheckpointError(
            file, number, f"expected a name and a value, found {quote(lines[number - 1])}"
        )
    return parts[1]
