"""What a command of the program is, and what several of them say alike."""

from dataclasses import dataclass, replace
from typing import Any, Final

from pylog_spark.options import declared
from pylog_spark.options.option import Option

LOOK: Final = "Look: nothing is written"
MAINTAIN: Final = "Maintain"
PLANS: Final = "Plans, and the way back"
MANAGED_ROOTS: Final = "Into and out of managed roots"
OTHERS: Final = "One partition, settings, this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of the program, or of a group."""

    name: str
    # Module and name of what it does with a command line, for an exit status: a function, or a
    # ``runner.Work`` where a run has options or a session.
    work: str
    help: str  # what it does, in Markdown; the first line stands in lists
    example: str  # the last line of its help
    options: tuple[Option[Any], ...] = ()  # its options and arguments, in the order of the help
    panel: str | None = None  # heading in the program's help; None in a group


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandGroup:
    """A command that has commands."""

    name: str
    panel: str  # heading in the program's help
    help: str
    commands: tuple[Command, ...]  # its commands, in the order of the help


# Where nothing is written, so that a guess is good enough.
GUESSED_ROLE: Final = replace(
    declared.ROLE, help="What the directories are. Default: what they look like."
)
CONFIG_OF_JOBS: Final = (
    *(declared.CONFIG_FILES, declared.SERVER_PROPERTIES, declared.TOPIC_DUMP),
    *(declared.SETTINGS_OF_RUN, declared.ASSUME_DEFAULTS),
)
METRICS: Final = (declared.METRICS_FILE, declared.METRICS_PUSH)
ANSWER_OF_JOBS: Final = (
    declared.LEDGER,
    declared.REPORT,
    *METRICS,
    declared.ENGINE,
    declared.MASTER,
    declared.OUTPUT,
    declared.WIDE,
    declared.QUIET,
)
