"""Options of ``pylog transplant``: the target, and what it is to know."""

from pathlib import Path
from typing import Final

from pylog_spark.options.declared import consent
from pylog_spark.options.kinds import FILE, FILES, SWITCH, TOPIC_NAMES
from pylog_spark.options.option import Option

TARGETS: Final = Option[tuple[Path, ...]](
    name="targets",
    flag="--to",
    kind=FILES,
    default=(),
    metavar="DST",
    help="Log directory of the target: of each broker with a replica; one has __cluster_metadata.",
    is_required=True,
)
NEW_NAMES: Final = Option[dict[str, str]](
    name="new_names",
    flag="--map",
    kind=TOPIC_NAMES,
    default={},
    metavar="OLD=NEW",
    help="A topic, and its other name in the target; may be repeated.",
)
KEEP_PRODUCERS: Final = Option[bool](
    name="keep_producers",
    flag="--keep-producers",
    kind=SWITCH,
    default=False,
    help="Let the target know the producers: they go on where they were. Default: it knows none.",
)
ALLOW_ABORT: Final = consent(
    "allow_abort", text="Also abort open transactions that were or may have been committed."
)
OFFSETS_OUT: Final = Option[Path | None](
    name="offsets_out",
    flag="--offsets-out",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="File for the groups' committed offsets: CSV for kafka-consumer-groups.sh --from-file.",
)
