"""Values with their origins, one layer over the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pylog_spark.options.declared import OPTIONS
from pylog_spark.options.option import Option
from storage_core.errors import ConfigError

T = TypeVar("T")

DEFAULT_ORIGIN: Final = "default"
_FLAG: Final = "--"
_NAMES: Final = {option.flag: option.name for option in OPTIONS if option.flag is not None}


@dataclass(slots=True)
class Layers:
    """Values by name, each with its origin; the last one wins. A mapping whose entries win one
    by one is kept as ``<its name>.<key of the entry>``."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def put(self, name: str, value: object, origin: str) -> None:
        """Put a value over what is there; None says nothing."""
        if value is not None:
            self.values[name] = (value, origin)

    def put_entries(self, name: str, entries: Mapping[str, object] | None, origin: str) -> None:
        """Put the entries of a mapping over those that are there."""
        for key, value in (entries or {}).items():
            self.put(f"{name}.{key}", value, origin)

    def value(self, option: Option[T]) -> T:
        """Return an option's value, or its default without a value."""
        if option.kind.is_mapping:
            return option.read(self.entries(option.name))
        return option.read(self.get(option.name))

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

    def with_file(self, error: ConfigError) -> ConfigError:
        """Return a setting's error with the file of its value. An error about a flag is returned
        unchanged."""
        name = self._name_of(error.key)
        origin = self.origin(name)
        if name not in self.values or origin.startswith(_FLAG):
            return error
        key = name if error.key.startswith(_FLAG) else error.key
        return ConfigError(f"{origin}: {key}", error.value, error.reason)

    def _name_of(self, key: str) -> str:
        """Return this layer's name for an error's key, else the key."""
        if key.startswith(_FLAG):
            return _NAMES.get(key, key)
        named = [name for name in self.values if key.startswith(f"{name}.")]
        named += [name for name in (f"settings.{key}", f"broker.{key}") if name in self.values]
        return max(named, key=len, default=key)
