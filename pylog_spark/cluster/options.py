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
    help="Log directory of the target. Name one of each broker with a replica, and "
    "__cluster_metadata.",
    is_required=True,
)
NEW_NAMES: Final = Option[dict[str, str]](
    name="new_names",
    flag="--map",
    kind=TOPIC_NAMES,
    default={},
    metavar="OLD=NEW",
    help="New name of a topic in the target; may be repeated.",
)
KEEP_PRODUCERS: Final = Option[bool](
    name="keep_producers",
    flag="--keep-producers",
    kind=SWITCH,
    default=False,
    help="Copy the producers' state, so that they continue in the target. Default: do not.",
)
ALLOW_ABORT: Final = consent(
    "allow_abort", text="Also abort open transactions that were committed or may have been."
)
OFFSETS_OUT: Final = Option[Path | None](
    name="offsets_out",
    flag="--offsets-out",
    kind=FILE,
    default=None,
    metavar="FILE",
    help="Write the groups' commits to this file: CSV for kafka-consumer-groups.sh --from-file.",
)
