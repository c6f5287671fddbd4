"""The records of MirrorMaker's topic ``mm2-offset-syncs.<alias>.internal``; they have no version.

Source: ``org.apache.kafka.connect.mirror.OffsetSync``.
"""

from typing import Final

from storage_core.messages.schema import INT32, INT64, STRING, Field, Message, Struct

OFFSET_SYNC_KEY: Final = Message(
    fields=Struct(Field("topic", STRING), Field("partition", INT32)), flexible_since=None
)
OFFSET_SYNC_VALUE: Final = Message(
    fields=Struct(Field("upstream_offset", INT64), Field("offset", INT64)), flexible_since=None
)
