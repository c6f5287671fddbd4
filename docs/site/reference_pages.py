"""Pages of reference, and the file of defaults, made of what the program declares.

What is in GENERATED is in the repository, where people read it without the site: the run of this
file writes it anew, as ``make docs`` does, and a test holds it to the program. Pages below
``docs/reference`` exist in the site only.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, StrEnum
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pylog_spark.cli.command import Command, CommandGroup
from pylog_spark.cli.commands import COMMANDS
from pylog_spark.ledger.tables import SCHEMAS
from pylog_spark.options.declared import SETTINGS_OF_RUN
from pylog_spark.options.load import OPTIONS
from pylog_spark.options.option import NO_DEFAULT, Option
from pylog_spark.options.values import TUNING_KEYS
from pylog_spark.refusals import PREDICATES, REASONS, Refusal, all_guards, all_remarks
from storage_core.config.broker_config import BROKER_KEYS
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.settings import CLEANER_KEYS
from storage_core.config.values import ConfigKey, Scope
from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.maintenance.verification.findings import Code

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Below docs/, and not kept: the declarations are.
_FOLDER: Final = "reference"
_GENERATED: Final = "Written by docs/site/reference_pages.py from what the program declares."
# The page that describes a command, by its name, or its group's where its commands share one.
_PAGES: Final[Mapping[str, str]] = {
    "inspect": "inspect",
    "dump": "inspect",
    "cat": "records",
    "export": "records",
    "find": "records",
    "sql": "records",
    "free": "free",
    "groups": "groups",
    "transactions": "groups",
    "explain": "explain",
    "survey": "explain",
    "verify": "verify",
    "scrub": "tiers",
    "doctor": "verify",
    "audit": "audit",
    "differences": "audit-differences",
    "copies": "copies",
    "timeline": "audit",
    "metadata": "metadata",
    "run": "nightly",
    "recover": "recovery",
    "heal": "healing",
    "salvage": "recovery",
    "retain": "retention",
    "compact": "compact",
    "apply": "undo",
    "runs": "undo",
    "undo": "undo",
    "purge": "undo",
    "transplant": "transplant",
    "attach": "tiers",
    "ingest": "managed-roots",
    "materialize": "managed-roots",
    "partition": "partition",
    "config": "config",
    "warmup": "install",
}
# What the file of defaults says of an option besides its help.
_MORE_IN_DEFAULTS: Final[Mapping[str, str]] = {
    "role": (
        "broker: log.dirs of a stopped broker; mirror: a copy that another program keeps syncing, "
        "read only; managed: a root of pylog."
    ),
    "high_watermark": (
        "Jobs delete and clean only records below them. checkpoint: the directory's "
        "replication-offset-checkpoint (a job skips a partition without an entry); log-end: as if "
        "every record of a log were replicated."
    ),
    "max_delete_ratio": "1: no limit.",
    "trash": (
        "A job moves the files of local directories there; to another filesystem it copies them."
    ),
    "settings": (
        "Keys here override every other source, for all topics. Sizes are in bytes and times in "
        "milliseconds, unless the key says otherwise. All keys of pylog:"
    ),
    "topics": """\
  orders: {cleanup.policy: compact, min.cleanable.dirty.ratio: 0.1}
  "metrics-*": {cleanup.policy: [compact, delete], retention.ms: 604800000}""",
    "spark": "  spark.driver.memory: 4g",
}
# An option of at least so many commands is described once.
_MANY_COMMANDS: Final = 5
_OPTION_HEADINGS: Final = ("option", "means", "default", "in files")
# The first code of each section of findings.
_FINDING_SECTIONS: Final[Mapping[Code, str]] = {
    Code.BATCH_CRC_WRONG: "Records",
    Code.OFFSETS_NOT_RISING: "Offsets and epochs",
    Code.OFFSET_INDEX_MISSING: "Indexes",
    Code.SNAPSHOT_CORRUPT: "Producers and transactions",
    Code.NO_SEGMENT: "Files of a partition",
    Code.CHECKPOINT_BROKEN: "Checkpoints of a log directory",
    Code.UNCLEAN_SHUTDOWN: "Log directories",
    Code.CLUSTER_METADATA_BROKEN: "The cluster's metadata",
    Code.TIER_OBJECT_UNKNOWN: "A tier (remote storage), by `pylog scrub`",
}


def setup(app: "Sphinx") -> dict[str, Any]:
    """Write the pages before Sphinx looks which there are."""
    app.connect("builder-inited", _write_pages)
    return {"parallel_read_safe": True}


def _write_pages(app: "Sphinx") -> None:
    docs = Path(app.srcdir)
    (docs / _FOLDER).mkdir(exist_ok=True)
    write_generated_files(docs.parent)
    for name, lines in {
        "config-keys": _config_keys(),
        "ledger": _ledger(),
        "python": _python(),
    }.items():
        _write(docs / _FOLDER / f"{name}.md", "\n".join(lines) + "\n")


def write_generated_files(repository: Path) -> None:
    """Write the generated files of the repository."""
    for name in GENERATED:
        _write(repository / name, text_of(name))


def text_of(name: str) -> str:
    """Return the text of a generated file, by its name in GENERATED."""
    first = f"<!-- {_GENERATED} -->" if name.endswith(".md") else f"# {_GENERATED}"
    return "\n".join((first, "", *GENERATED[name]())) + "\n"


def _write(page: Path, text: str) -> None:
    # An unchanged page is not built again.
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def _commands() -> Iterator[str]:
    yield from (
        "# Commands and options",
        "",
        "This page has the texts of `pylog COMMAND --help` and `pylog help COMMAND`; `-h` shows",
        "the options on one screen. `python -m pylog_spark` is the same program. Other pages have",
        "the [output](output.md) and [exit statuses](exit-statuses.md) of all commands. The column",
        "*in files* has an option's name in a [`--config` file](config.md).",
        "",
    )
    each_command = list(_each_command())
    shared = _shared_rows(command for _, command, _ in each_command)
    yield from _table(
        ("command", "does", "more"),
        (
            (
                f"[`pylog {words}`](#pylog-{words.replace(' ', '-')})",
                command.help.strip().split("\n\n")[0],
                f"[{page}]({page}.md)",
            )
            for words, command, page in each_command
        ),
    )
    yield from ("", "## Options of many commands", "")
    yield from _table(_OPTION_HEADINGS, shared)
    for words, command, _ in each_command:
        yield from _command(command, words, shared)


def _each_command() -> Iterator[tuple[str, Command, str]]:
    """Yield each command with the words that call it and the page that describes it."""
    for each in COMMANDS:
        if isinstance(each, CommandGroup):
            for command in each.commands:
                yield f"{each.name} {command.name}", command, _PAGES[each.name]
        else:
            yield each.name, each, _PAGES[each.name]


def _shared_rows(commands: Iterable[Command]) -> list[tuple[str, ...]]:
    """Return the rows of options that many commands have, the most frequent first."""
    counts = Counter(row for command in commands for row in _option_rows(command))
    rows: dict[str, tuple[str, ...]] = {}
    for row, count in counts.most_common():
        if count >= _MANY_COMMANDS:
            rows.setdefault(_name_of(row), row)
    return list(rows.values())


def _command(command: Command, words: str, shared: Collection[tuple[str, ...]]) -> Iterator[str]:
    yield from ("", f"## pylog {words}", "")
    yield from (line.strip() for line in command.help.strip().splitlines())
    yield from ("", command.example, "")
    rows = _option_rows(command)
    yield from _table(_OPTION_HEADINGS, (row for row in rows if row not in shared))
    names = ", ".join(_code(_name_of(row)) for row in rows if row in shared)
    if names:
        yield from ("", f"[Also](#options-of-many-commands) {names}.")


def _option_rows(command: Command) -> list[tuple[str, ...]]:
    return [
        (_code(_flag(option)), option.help, _default(option), _code(_in_file(option)))
        for option in command.options
        if not option.is_hidden
    ]


def _name_of(row: tuple[str, ...]) -> str:
    return re.split(r"[ ,`]", row[0].strip("`"))[0]


def _flag(option: Option[Any]) -> str:
    label = f"{option.flag}, {option.short}" if option.short else option.label
    if option.flag is None or option.kind.written is bool:
        return label
    words, written = option.metavar, option.kind.written
    if words is None and isinstance(written, type) and issubclass(written, Enum):
        words = "|".join(str(choice.value) for choice in written)
    return f"{label} {words}" if words else label


def _default(option: Option[Any]) -> str:
    shown = option.default if option.shown is None else option.shown
    if option.is_required:
        return "required"
    if shown is NO_DEFAULT or shown in (None, False, (), {}, frozenset(), ""):
        return ""
    return _code(str(shown.value if isinstance(shown, Enum) else shown))


def _in_file(option: Option[Any]) -> str:
    return option.name if option.is_in_files else ""


def _findings() -> Iterator[str]:
    yield from (
        "# Findings",
        "",
        "These are all codes of `pylog verify`, `doctor` and `scrub`. They are stable: scripts may",
        "filter and count by them. [verify.md](verify.md) explains severities and fixes.",
    )
    rows: list[tuple[str, ...]] = []
    for code in Code:
        if code in _FINDING_SECTIONS:
            if rows:
                yield from _table(("code", "severity", "means", "what to do"), rows)
            rows = []
            yield from ("", f"## {_FINDING_SECTIONS[code]}", "")
        kind = KINDS[code]
        severity = "; ".join(filter(None, (kind.severity.value, kind.elsewhere)))
        fix = re.sub(
            r"\{(\w+)\}", lambda match: match[1].upper(), kind.advice.replace("{start}", "")
        )
        rows.append((_code(code.value), severity, kind.meaning, fix))
    yield from _table(("code", "severity", "means", "what to do"), rows)


def _refusals() -> Iterator[str]:
    yield from (
        "# Refusals, and the way out of each",
        "",
        "If pylog skips a partition or refuses a whole run, it gives a code. This page has the",
        "meaning of each code, and what to do. A run, `survey`, `ingest` and `materialize` print",
        "one line for each reason below their tables. `pylog explain CODE` explains any code,",
        "offline. Replace `ROOT`, `TOPIC` and `DIR`. [findings.md](findings.md) has the findings.",
        "",
        "## Reasons of partitions",
        "",
    )
    yield from _refusal_rows(REASONS)
    yield from (
        "",
        "## Predicates",
        "",
        "[`pylog explain`](explain.md) also checks these conditions of a log. A code of",
        "retention begins with its limit: `LOG_START`, `SIZE` or `TIME`.",
        "",
    )
    yield from _refusal_rows(PREDICATES)
    yield from ("", "## Refusals of a run", "")
    yield from ("The run has changed nothing; the exit status is 3.", "")
    yield from _refusal_rows(all_guards())
    yield from ("", "## Remarks", "")
    yield from (
        "These codes refuse nothing. They are about damage for [`pylog heal`](healing.md), rebuilt",
        "[metadata](metadata-rebuild.md), verdicts, segments of a mirror, buckets,",
        "[audits](audit.md), [commits and transactions](groups.md). `pylog explain` also explains",
        "each error by its name.",
        "",
    )
    yield from _refusal_rows(all_remarks())


def _refusal_rows(table: Mapping[Any, Refusal]) -> Iterator[str]:
    rows = ((_code(str(code)), one.means, one.way or "nothing") for code, one in table.items())
    yield from _table(("code", "means", "the way out"), rows)


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


def _defaults() -> Iterator[str]:
    yield from _comment(
        "Defaults of all jobs. A --config file overrides them, and a flag overrides both.\n"
        "`pylog config show --origin` prints every current setting with its unit and its source: "
        "the options below, and each of Kafka's topic, cleaner and broker keys."
    )
    for option in filter(lambda option: option.is_in_files, OPTIONS):
        yield ""
        path = " A path is relative to this file." if option.kind.written is Path else ""
        yield from _comment(option.help + path)
        yield from _comment(_MORE_IN_DEFAULTS.get(option.name, ""))
        if option is SETTINGS_OF_RUN:
            yield f"{option.name}:"
            ours = (key for key in (*CLEANER_KEYS.values(), *TUNING_KEYS.values()) if _is_ours(key))
            for key in ours:
                value = key.default or '""'
                yield f"  {key.name}: {value} # {key.unit or key.valid}; {key.doc}"
            continue
        words = option.kind.written
        choices = f" # {', '.join(words)}" if isclass(words) and issubclass(words, StrEnum) else ""
        default = option.written_default or json.dumps(option.default).strip('"')
        yield f"{option.name}: {default}{choices}"


def _is_ours(key: ConfigKey) -> bool:
    return key.scope is Scope.PYLOG


def _comment(text: str) -> Iterator[str]:
    """Yield a text as comments of YAML; its lines are broken where they are too long."""
    for line in text.splitlines():
        yield from wrap(
            line, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )


def _python() -> Iterator[str]:
    yield "# Python"
    for module, what in (
        ("storage_core.kafka_log", "Records without Spark: [with examples](../python.md)."),
        ("pylog_spark.log_directory", "A log directory's verbs: [in a notebook](../notebooks.md)."),
    ):
        yield from ("", f"## {module}", "", what, "", "```{eval-rst}")
        names = getattr(import_module(module), "__all__", None)
        if names is None:
            yield from (f".. automodule:: {module}", "   :members:", "   :inherited-members:")
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


# Lines of the files that are in the repository, by their names.
GENERATED: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "docs/cli.md": _commands,
    "docs/findings.md": _findings,
    "docs/refusals.md": _refusals,
    "conf/defaults.yaml": _defaults,
}

if __name__ == "__main__":
    write_generated_files(Path(__file__).resolve().parents[2])
