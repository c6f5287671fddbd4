"""From a command's parameters to what the command line says.

typer wants each option to be a parameter of each command that has it; here they become one value.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pylog_spark.options.load import Flags

# What a flag is called where the parameter has the option's own name.
_NAMES: Final = {"topics": "include", "override": "overrides", "older_than": "purge_after"}
# What is no flag of a job: where it works, and how it is reported.
NO_FLAGS: Final = frozenset(
    {
        "deep",
        "directory",
        "fail_on",
        "in_place",
        "live",
        "managed",
        "mirror",
        "origin",
        "output",
        "report",
        "roots",
        "run",
        "settle",
        "show",
        "sync_stopped",
    }
)
_NO_MARK: Final = "no_mark_clean"


def said_flags(parameters: Mapping[str, Any]) -> "Flags":
    """Return what the parameters of a command say.

    Args:
        parameters: All of them by name, before anything else has a name: ``locals()``.

    Raises:
        TypeError: One of them is no flag, and not among ``NO_FLAGS``.
    """
    from pylog_spark.options.load import Flags  # noqa: PLC0415  # pydantic, YAML, not for --help

    said = {
        _NAMES.get(name, name): value
        for name, value in parameters.items()
        if value is not None and name not in NO_FLAGS
    }
    # The marker is written unless somebody said otherwise, which a file may do as well.
    if said.pop(_NO_MARK, False):
        said["mark_clean"] = False
    return Flags(**said)
