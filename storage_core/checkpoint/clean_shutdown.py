"""``.kafka_cleanshutdown``: a broker's word that it closed every log of a directory.

JSON ``{"version":0,"brokerEpoch":N}`` without a newline. That the file exists is all that recovery
asks; what it holds tells the controller which reign of the broker ended cleanly. Content that
cannot be read therefore only means that no broker epoch is known. Source:
``org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler``.
"""

from dataclasses import dataclass
from typing import Final

from storage_core.checkpoint.checkpoint_text import LONG_MAX
from storage_core.checkpoint.small_files import SmallFiles
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.json_text import parse_json

UNKNOWN_BROKER_EPOCH: Final = -1
MAX_CLEAN_SHUTDOWN_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """What the marker says.

    Attributes:
        broker_epoch: Epoch of the broker that wrote it, or UNKNOWN_BROKER_EPOCH.
    """

    broker_epoch: int = UNKNOWN_BROKER_EPOCH


def read_clean_shutdown(directory: SmallFiles) -> CleanShutdown | None:
    """Return what the marker of a log directory says, None without one.

    Raises:
        StorageError: It cannot be read.
    """
    content = directory.read(CLEAN_SHUTDOWN_FILE, limit_bytes=MAX_CLEAN_SHUTDOWN_BYTES)
    return None if content is None else parse_clean_shutdown(content)


def parse_clean_shutdown(data: bytes) -> CleanShutdown:
    """Parse the marker; whatever it holds, it is one."""
    try:
        content = parse_json(data, limit_bytes=MAX_CLEAN_SHUTDOWN_BYTES)
    except ValueError:
        return CleanShutdown()
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    if type(epoch) is not int or not -LONG_MAX - 1 <= epoch <= LONG_MAX:
        return CleanShutdown()
    return CleanShutdown(broker_epoch=epoch)


def encode_clean_shutdown(broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> bytes:
    """Return the exact bytes that Kafka 4.4 writes."""
    return f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode("ascii")
