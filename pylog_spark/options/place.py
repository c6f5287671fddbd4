"""Settings of a place: ``pylog.yaml`` of the working directory, or the file of ``PYLOG_CONFIG``.

It names roots, role, ledger, trash and config files, for commands that do not say them. Relative
paths are relative to the file. It says what a job changes, so it has to be this user's own, or
root's, and nobody else may be able to write it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pylog_spark.options.declared import CONFIG_FILES, LEDGER, ROLE, ROOTS, TRASH
from pylog_spark.options.option import Option, Place
from storage_core.catalog.roles import Role, local_path
from storage_core.errors import ConfigError
from storage_core.local_files import open_file, require_own_file

PLACE_FILE: Final = "pylog.yaml"
PLACE_VARIABLE: Final = "PYLOG_CONFIG"
_MAX_BYTES: Final = 1 << 20
_MANAGED: Final = "managed+"  # ``MANAGED_PREFIX``, whose module needs more than the help


def read_place() -> Place | None:
    """Return the settings of the place where the program was started; None without a file.

    Raises:
        ConfigError: The file is not this user's, cannot be read, or says what it may not.
    """
    named = os.environ.get(PLACE_VARIABLE)
    if named is not None:
        return _read(PLACE_VARIABLE, Path(named).absolute()) if named else None
    # A deleted working directory has no file; one that cannot be listed may have one.
    if not os.path.lexists(PLACE_FILE):
        return None
    return _read(PLACE_FILE, Path(PLACE_FILE).absolute())


def _read(label: str, path: Path) -> Place:
    from pylog_spark.options.load import load_yaml  # noqa: PLC0415  # pydantic, YAML

    try:
        # The file that somebody named may be behind a link; one that merely lies here may not.
        descriptor = open_file(path.resolve() if label == PLACE_VARIABLE else path)
        with os.fdopen(descriptor, "rb") as file:
            require_own_file(path, os.fstat(descriptor))
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(label, path, error.strerror or str(error)) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(label, path, f"is larger than {_MAX_BYTES} bytes")
    document, lines = load_yaml(label, path, content)
    values: dict[str, Any] = {}
    for key, value in document.items():
        line = f", line {lines[key]}" if key in lines else ""
        where = f"{path}{line}: {key}"
        if key not in _KEYS:
            raise _unknown(where, key, value)
        option, read = _KEYS[key]
        if value is not None:
            values[option.name] = read(where, value, path.parent)
    return Place(file=str(path), values=values)


def _unknown(where: str, key: str, value: object) -> ConfigError:
    from storage_core.config.values import unknown_key  # noqa: PLC0415  # for an error alone

    reason = unknown_key(str(key), value, list(_KEYS)).reason
    return ConfigError(where, value, f"{reason}; there are {', '.join(_KEYS)}")


def _texts(where: str, value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(_is_text(text) for text in texts):
        raise ConfigError(where, value, "expected a text, or a list of texts")
    return texts


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _text(where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(where, value, "expected a text")
    return value


def _located(text: str, folder: Path) -> str:
    """Return a path as it is meant in a file of a folder; a URL as it is."""
    prefix = _MANAGED if text.startswith(_MANAGED) else ""
    rest = text.removeprefix(prefix)
    path = local_path(rest)
    is_url = path is None or "://" in rest or rest.startswith("file:/")
    return text if is_url else f"{prefix}{folder / rest}"


def _read_roots(where: str, value: object, folder: Path) -> list[str]:
    return [_located(text, folder) for text in _texts(where, value)]


def _read_role(where: str, value: object, _: Path) -> Role:
    words = [role.value for role in Role]
    if value not in words:
        raise ConfigError(where, value, f"expected one of: {', '.join(words)}")
    return Role(str(value))


def _read_location(where: str, value: object, folder: Path) -> str:
    return _located(_text(where, value), folder)


def _read_files(where: str, value: object, folder: Path) -> list[Path]:
    return [folder / text for text in _texts(where, value)]


_KEYS: Final[dict[str, tuple[Option[Any], Callable[[str, object, Path], Any]]]] = {
    "roots": (ROOTS, _read_roots),
    "role": (ROLE, _read_role),
    "ledger": (LEDGER, _read_location),
    "trash": (TRASH, _read_location),
    "config": (CONFIG_FILES, _read_files),
}
