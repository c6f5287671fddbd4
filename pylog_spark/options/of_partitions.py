"""Options of ``pylog partition``: what a broker's checkpoints and files would say."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from pylog_spark.options.declared import OVERRIDE
from pylog_spark.options.option import (
    ARRAY_SIZE,
    FACTOR,
    FILE,
    OFFSET,
    SETTINGS,
    SWITCH,
    Option,
    codes,
)

DIRECTORY: Final = Option[Path](
    name="directory",
    kind=FILE,
    metavar="DIR",
    help="Partition directory, named TOPIC-PARTITION.",
    is_required=True,
)
CLOCK: Final = Option[int](
    name="now_ms",
    flag="--now-ms",
    kind=OFFSET,
    metavar="MS",
    help="The time of the run, in epoch milliseconds.",
    is_required=True,
)
WHOLE_CONFIG: Final = Option[tuple[str, ...]](
    name="settings",
    flag="--set",
    kind=SETTINGS,
    default=(),
    metavar="KEY=VALUE",
    help="A key of Kafka or of pylog. These are the whole config.",
)
CONSENT: Final = replace(OVERRIDE, kind=codes(("RECORDS_WITHOUT_KEY",)), panel=None)
HIGH_WATERMARK: Final = Option[int | None](
    name="high_watermark",
    flag="--high-watermark",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="High watermark of the log. Default: the log end offset.",
)
LOG_START: Final = Option[int | None](
    name="log_start_offset",
    flag="--log-start-offset",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Log start of the partition's checkpoint, if it has one.",
)
LOG_START_OR_ZERO: Final = Option[int](
    name="log_start_offset",
    flag="--log-start-offset",
    kind=OFFSET,
    default=0,
    shown=0,
    metavar="N",
    help="Log start of the partition's checkpoint. Default: 0.",
)
RECOVERY_POINT: Final = Option[int](
    name="recovery_point",
    flag="--recovery-point",
    kind=OFFSET,
    default=0,
    shown=0,
    metavar="N",
    help="Recovery point of the partition's checkpoint. Default: 0.",
)
CLEANER_CHECKPOINT: Final = Option[int | None](
    name="cleaner_checkpoint",
    flag="--cleaner-checkpoint",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Cleaner offset of the partition's checkpoint; Kafka's rule then gives the range.",
)
FIRST_DIRTY: Final = Option[int | None](
    name="first_dirty_offset",
    flag="--first-dirty-offset",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Clean from this offset on, even if the log is not due.",
)
FIRST_UNCLEANABLE: Final = Option[int | None](
    name="first_uncleanable_offset",
    flag="--first-uncleanable-offset",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Stop at this offset; only with --first-dirty-offset.",
)
OFFSET_MAP_BYTES: Final = Option[int | None](
    name="offset_map_bytes",
    flag="--offset-map-bytes",
    kind=OFFSET,
    default=None,
    metavar="N",
    help="Memory of the offset map, 24 bytes a key. Default: 128 MiB.",
)
LOAD_FACTOR: Final = Option[float | None](
    name="load_factor",
    flag="--load-factor",
    kind=FACTOR,
    default=None,
    metavar="F",
    help="Share of the offset map to use. Default: 0.9.",
)
IO_BUFFER_BYTES: Final = Option[int | None](
    name="io_buffer_bytes",
    flag="--io-buffer-bytes",
    kind=ARRAY_SIZE,
    default=None,
    metavar="N",
    help="Size of Kafka's buffer. Default: 524288.",
)
MAX_IO_BUFFER_BYTES: Final = Option[int | None](
    name="max_io_buffer_bytes",
    flag="--max-io-buffer-bytes",
    kind=ARRAY_SIZE,
    default=None,
    metavar="N",
    help="Maximum size of the buffer. Default: 67108864.",
)
THEN_RETAIN: Final = Option[bool](
    name="then_retain",
    flag="--then-retain",
    kind=SWITCH,
    default=False,
    help="Apply retention after the round.",
)
CLEAN_SHUTDOWN: Final = Option[bool](
    name="clean_shutdown",
    flag="--clean-shutdown",
    kind=SWITCH,
    default=False,
    help="Load the log as after a clean shutdown, without verification.",
)
NO_TRUNCATE: Final = Option[bool](
    name="no_truncate",
    flag="--no-truncate",
    kind=SWITCH,
    default=False,
    help="Change nothing if a record would be cut.",
)
TRUNCATE_TO: Final = Option[int](
    name="to",
    flag="--to",
    kind=OFFSET,
    metavar="N",
    help="New end offset of the log.",
    is_required=True,
)
