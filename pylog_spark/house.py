"""What a house above this one adds to the program, where its package is installed.

Nothing of upkeep imports a house above it. A house names what it adds, as ``module:name``, so that
``pylog --help`` and a loop over ``pylog dump`` import nothing that they do not use.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from storage_core.errors import ConfigError

# Packages of houses above this one. Each has a module ``house`` with its ``HOUSE``.
_PACKAGES: Final = ("pylog_spark.cluster",)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a house adds: names of values, each as ``module:name``."""

    # Mapping of its ``Command`` and ``CommandGroup`` tuples, by the command that they follow.
    commands: str
    guards: str  # mapping of ``Refusal`` by the codes of its refusals
    remarks: str  # mapping of ``Refusal`` by the codes of its remarks
    warm_up: str  # function that runs its kernels on the log of a directory
    find_absent_voters: str  # function that names the controllers that have to run besides these
    diagnose_brokers: str  # function that diagnoses several brokers, for ``SeveralDiagnoses``
    open_healing: str  # function that opens a log with the bytes of other replicas
    # Function that applies a saved plan, by the name of its action.
    operations: Mapping[str, str] = field(default_factory=dict)
    # Enumeration of reasons, by the name of an action: a row with one is for a person to decide.
    for_a_person: Mapping[str, str] = field(default_factory=dict)


def load(name: str) -> Any:
    """Import a module and return the value of it that ``module:name`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


@cache
def installed_houses() -> tuple[House, ...]:
    """Return the houses above this one whose packages are installed."""
    return tuple(
        load(f"{package}.house:HOUSE") for package in _PACKAGES if find_spec(package) is not None
    )


def additions(kind: str) -> Iterator[Any]:
    """Yield what each house has for a field of ``House``, imported."""
    for house in installed_houses():
        yield load(getattr(house, kind))


def require_addition(kind: str, purpose: str) -> Any:
    """Return what the first house has for a field of ``House``."""
    for addition in additions(kind):
        return addition
    raise ConfigError("package", ", ".join(_PACKAGES), f"is not installed; {purpose} needs it")


def addition_for(kind: str, action: str) -> Any | None:
    """Return what a house has for an action in a field of ``House``, None where none has it."""
    for house in installed_houses():
        names: Mapping[str, str] = getattr(house, kind)
        if action in names:
            return load(names[action])
    return None
