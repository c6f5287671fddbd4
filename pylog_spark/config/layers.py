"""Values with their origins, one layer over the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_ORIGIN: Final = "default"


@dataclass(slots=True)
class Layers:
    """Values by name, each with its origin; the last one that is put in wins.

    A mapping whose entries win one by one is kept as ``<its name>.<key of the entry>``.
    """

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def put(self, name: str, value: object, origin: str) -> None:
        """Put a value over what is there; None says nothing."""
        if value is not None:
            self.values[name] = (value, origin)

    def put_entries(self, name: str, entries: Mapping[str, object] | None, origin: str) -> None:
        """Put the entries of a mapping over those that are there."""
        for key, value in (entries or {}).items():
            self.put(f"{name}.{key}", value, origin)

    def get(self, name: str) -> Any:
        """Return a value, None where no layer says one."""
        value, _ = self.values.get(name, (None, ""))
        return value

    def origin(self, name: str) -> str:
        """Return where a value comes from."""
        return self.values[name][1] if name in self.values else DEFAULT_ORIGIN

    def entries(self, name: str) -> dict[str, Any]:
        """Return the entries of a mapping."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, (value, _) in self.values.items()
            if key.startswith(prefix)
        }
