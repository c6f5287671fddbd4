"""An option: names, written form, value, and help.

``declared`` has every option, once, each as one of these. The command line and its help, YAML
files, ``pylog config show`` and the values of a run come from there.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

# Of an option that a command line or a clock has to say.
NO_DEFAULT: Final = object()
_METADATA_KEY: Final = "pylog_spark.options"


class Shape(enum.Enum):
    """How YAML writes a value."""

    PLAIN = enum.auto()
    AMOUNT = enum.auto()  # a text; a number stands for its text, with or without a unit
    ENTRIES = enum.auto()  # a mapping whose entries win one by one over those of a weaker layer
    ENTRIES_BY_NAME = enum.auto()  # a mapping of such mappings, whose names win one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The written form of an option's values, and its reader."""

    written: Any  # type on the command line: str, int, bool, Path, an enumeration, a list of texts
    in_file: Any = None  # type in YAML
    shape: Shape = Shape.PLAIN  # how YAML writes it
    # Makes the value of what is written; it gets the option's name first, for errors.
    read: Callable[[str, Any], Any] = lambda _, value: value
    # Reads a text of the command line before all else; its ValueError is for a person.
    parse: Callable[[str], Any] | None = None
    # Smallest number on the command line; None where ``read`` or ``parse`` looks.
    at_least: int | None = None
    may_be_empty: bool = False  # an empty text says as little as none

    @property
    def is_mapping(self) -> bool:
        """Whether it has entries, each with an origin of its own."""
        return self.shape in {Shape.ENTRIES, Shape.ENTRIES_BY_NAME}


@dataclass(frozen=True, kw_only=True)  # no slots: ``Option[int](...)`` sets an attribute
class Option(Generic[T_co]):
    """One option, or one argument."""

    name: str
    kind: Kind
    # Its value where nobody says one; NO_DEFAULT where somebody has to.
    default: T_co | Any = NO_DEFAULT
    # On the command line; None for an argument, and for what only files may say.
    flag: str | None = None
    short: str | None = None  # one letter for the flag, with its dash; None for most
    metavar: str | None = None  # the placeholder of its value in the help
    help: str = ""
    panel: str | None = None  # heading in the help; None for the options that say what is done
    says: bool = True  # A switch's value
    shown: Any = None  # the default in the help; None to show none
    is_required: bool = False  # whether a command line without it is wrong
    is_hidden: bool = False  # whether the help leaves it out
    is_in_files: bool = False  # whether ``--config`` files may have it
    # The meaning of its value; one line of ``pylog config show`` if files may have it.
    doc: str = ""

    @property
    def label(self) -> str:
        """What an error calls it."""
        return self.flag or self.metavar or self.name

    def read(self, written: Any) -> T_co:
        """Return its value for what is written, its default for None."""
        if written is None or (self.kind.may_be_empty and not written):
            value: T_co = self.default
        else:
            value = self.kind.read(self.label, written)
        return value

    def field(self) -> T_co:
        """Declare the field of a dataclass that holds its value."""
        metadata = {_METADATA_KEY: self}
        if self.kind.is_mapping:
            empty: Any = dataclasses.field(default_factory=dict, metadata=metadata)
            return empty  # type: ignore[no-any-return]  # as dataclasses.field itself does
        default = MISSING if self.default is NO_DEFAULT else self.default
        field: Any = dataclasses.field(default=default, metadata=metadata)
        return field  # type: ignore[no-any-return]


def options_of(values: type) -> dict[str, Option[Any]]:
    """Return the options that a dataclass holds the values of, by field."""
    fields = dataclasses.fields(values)
    return {f.name: f.metadata[_METADATA_KEY] for f in fields if _METADATA_KEY in f.metadata}


class CommandLine:
    """What a command line has: options and arguments that somebody has written.

    Args:
        written: The given texts, by the option's name; None and an empty list mean that none is
            given.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._written = {
            name: value for name, value in written.items() if value is not None and value != []
        }

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name in self._written

    def __getitem__(self, option: Option[T_co]) -> T_co:
        """Return the value of an option, else its default."""
        return option.read(self.written(option))

    def written(self, option: Option[Any]) -> Any:
        """Return an option's value as written, None without one."""
        return self._written.get(option.name)

    def with_switch(self, option: Option[bool]) -> "CommandLine":
        """Return the same command line with a switch."""
        return self.with_written({option: option.says})

    def with_written(self, values: Mapping[Option[Any], Any]) -> "CommandLine":
        """Return the same command line with other values of some options."""
        others = {option.name: value for option, value in values.items()}
        return CommandLine({**self._written, **others})
