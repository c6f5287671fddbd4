"""Pages of reference that are made of what the program itself declares, when the site is built."""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sphinx.application import Sphinx

from pylog_spark.cli.commands import COMMANDS, Command, Group
from pylog_spark.ledger.tables import SCHEMAS
from pylog_spark.options.option import NO_DEFAULT, Option
from pylog_spark.options.values import TUNING_KEYS
from storage_core.config.broker_config import BROKER_KEYS
from storage_core.config.cleaner_config import CLEANER_KEYS
from storage_core.config.keys import ConfigKey
from storage_core.config.log_config import TOPIC_KEYS

# Below docs/, and not kept: the declarations are.
_FOLDER: Final = "reference"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks which there are."""
    app.connect("builder-inited", _write_pages)
    return {"parallel_read_safe": True}


def _write_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / _FOLDER
    folder.mkdir(exist_ok=True)
    for name, lines in {
        "options": _options(),
        "config-keys": _config_keys(),
        "ledger": _ledger(),
        "python": _python(),
    }.items():
        text = "\n".join(lines) + "\n"
        page = folder / f"{name}.md"
        # An unchanged page is not built again.
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def _options() -> Iterator[str]:
    yield "# Commands and their options"
    yield ""
    yield "What `pylog COMMAND --help` shows; [in sentences](../cli.md)."
    for each in COMMANDS:
        if isinstance(each, Group):
            for command in each.commands:
                yield from _command(command, f"{each.name} {command.name}")
        else:
            yield from _command(each, each.name)


def _command(command: Command, words: str) -> Iterator[str]:
    arguments = [option for option in command.options if option.flag is None]
    shown = " ".join(option.label for option in arguments)
    yield from ("", f"## pylog {words} {shown}".rstrip(), "")
    yield from (line.strip() for line in command.help.strip().splitlines())
    yield from ("", command.example, "")
    rows = [
        (_code(_flag(option)), option.help or option.doc, _default(option), _code(_in_file(option)))
        for option in command.options
        if not option.is_hidden
    ]
    yield from _table(("option", "means", "default", "in files"), rows)


def _flag(option: Option[Any]) -> str:
    if option.flag is None or option.kind.written is bool:
        return option.label
    words, written = option.metavar, option.kind.written
    if words is None and isinstance(written, type) and issubclass(written, Enum):
        words = "|".join(str(choice.value) for choice in written)
    return f"{option.flag} {words}" if words else option.flag


def _default(option: Option[Any]) -> str:
    shown = option.default if option.shown is None else option.shown
    if option.is_required:
        return "has to be said"
    if shown is NO_DEFAULT or shown in (None, False, (), {}, frozenset(), ""):
        return ""
    return _code(str(shown.value if isinstance(shown, Enum) else shown))


def _in_file(option: Option[Any]) -> str:
    return option.name if option.is_in_files else ""


def _config_keys() -> Iterator[str]:
    yield "# Config keys"
    yield ""
    yield "For `--set KEY=VALUE`, and files of `--config`; brokers: in `server.properties`."
    for heading, keys in (
        ("Of topics", TOPIC_KEYS),
        ("Of the cleaner", CLEANER_KEYS),
        ("Of brokers", BROKER_KEYS),
        ("Of this program alone", TUNING_KEYS),
    ):
        yield from ("", f"## {heading}", "")
        yield from _table(("key", "means", "default", "unit", "allowed"), map(_key, keys.values()))


def _key(key: ConfigKey) -> tuple[str, ...]:
    names = [key.name, *(name.name for name in key.broker_names)]
    said = ", ".join(map(_code, names[1:]))
    doc = f"{key.doc} (a broker's own: {said})" if said else key.doc
    return _code(key.name), doc, _code(key.default), key.unit, key.valid


def _ledger() -> Iterator[str]:
    yield "# Tables of the ledger"
    yield ""
    yield "Delta tables below the place that `--ledger` names. Columns are only ever added."
    for table, schema in SCHEMAS.items():
        yield from ("", f"## {table.value}", "")
        yield from _table(("column", "type", "means"), map(_column, schema))


def _column(field: pa.Field) -> tuple[str, ...]:
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    return _code(field.name), str(field.type), metadata.get(b"comment", b"").decode()


def _python() -> Iterator[str]:
    yield "# Python"
    for module, what in (
        ("storage_core.kafka_log", "Records without Spark: [with examples](../python.md)."),
        ("pylog_spark.log_directory", "A log directory's verbs: [in a notebook](../notebooks.md)."),
    ):
        yield from ("", f"## {module}", "", what, "", "```{eval-rst}")
        names = getattr(import_module(module), "__all__", None)
        if names is None:
            yield from (f".. automodule:: {module}", "   :members:")
        else:
            yield f".. automodule:: {module}"
            yield from _public_names(module, names)
        yield "```"


def _public_names(module: str, names: Iterable[str]) -> Iterator[str]:
    """Yield what people begin with first: functions, then classes, then errors and constants."""
    entries = []
    for name in names:
        value = getattr(import_module(module), name)
        is_class = isinstance(value, type)
        if isfunction(value):
            entries.append((0, "autofunction", name))
        elif is_class and not issubclass(value, Exception):
            # Those of the module itself are what its functions return.
            entries.append((1 if value.__module__ == module else 2, "autoclass", name))
        else:
            entries.append((3, "autoexception" if is_class else "autodata", name))
    for _, directive, name in sorted(entries, key=lambda entry: entry[0]):
        yield from ("", f".. {directive}:: {module}.{name}")
        if directive == "autoclass":
            yield "   :members:"


def _table(headings: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"| {' | '.join('---' for _ in headings)} |"
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
