"""``pylog explain``: the reason for keeping a partition, or a code's meaning.

It says why a partition is not cleaned or deleted.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from pylog_spark.cli.chosen_topics import topic_notes, write_notes
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.runner import Call, Work, load_options
from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import MEANINGS, ExitCode, is_failed_look
from pylog_spark.operations.explain import explain
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import CONFIG_FILES, OUTPUT, ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.refusals import GUARDS, PREDICATES, REASONS, predicate_of
from pylog_spark.report import partition_name
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.run_report import unknown_config_notes
from pylog_spark.text import printable
from pylog_spark.text_table import (
    Column,
    Row,
    TextTable,
    write_lines,
    write_paragraphs,
    write_table,
)
from storage_core.catalog.topic_filter import nearest_name
from storage_core.errors import ConfigError
from storage_core.maintenance.explain.answers import Statement
from storage_core.maintenance.retention.plan import Predicate
from storage_core.maintenance.verification.finding_kinds import KINDS
from storage_core.wording import time_text

_PLACE: Final = ("root", "topic", "partition", "directory")
_STATEMENT_COLUMNS: Final = (*_PLACE, *(field.name for field in fields(Statement)), "way_out")
_CODE: Final = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*|[0-9]{1,3}")
_CODE_COLUMNS: Final = ("code", "kind", "means", "way_out")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_STYLES: Final = {"blocks": "yellow", "passes": "green", "tells": "dim"}


def _statement_text(row: Row) -> str:
    """Return what a predicate says, and until when or until what."""
    at = [] if row["until_ms"] is None else [time_text(row["until_ms"])]
    until = " or ".join([*at, *([row["until"]] if row["until"] else [])])
    when = f"; until {until}" if until else ""
    way = f"; the way out: {row['way_out']}" if row["way_out"] else ""
    return f"{row['text']}{when}{way}"


def _predicate(code: str) -> str:
    """Return a code without its first word, if repeated last: WITHIN_TIME."""
    for word in Predicate:
        if code.startswith(f"{word}_") and code.endswith(f"_{word}"):
            return code.removeprefix(f"{word}_")
    return code


# The predicates of a partition, in the order in which Kafka asks.
_STATEMENT_TABLE: Final = TextTable(
    columns=(
        Column(heading="about", cell=lambda row: row["about"]),
        Column(heading="predicate", cell=lambda row: _predicate(row["code"])),
        Column(
            heading="says",
            cell=lambda row: row["verdict"],
            style=lambda row: _STYLES[row["verdict"]],
        ),
    ),
    note=_statement_text,
)


class _Explain:
    """Explains partitions, or codes in place of roots.

    Of a code it says the meaning.
    """

    def __call__(self, line: CommandLine) -> int:
        """Run the command, and return its exit status."""
        words = line[ROOTS]
        if any(is_code(word) for word in words) and not any(map(os.path.exists, words)):
            return explain_codes(words, line[OUTPUT])
        return _PARTITIONS(line)


def _prepare(line: CommandLine) -> Call[None]:
    options = load_options(line)
    notes = topic_notes(options, resolve_roots(line[ROOTS], said=options.role))
    return Call(line=line, options=options, subject=None, notes=notes)


def _explain(call: Call[None], _session: None) -> Iterable[Row]:
    for note in dump_notes(call.options):
        typer.echo(printable(note), err=True)
    return explain(call.line[ROOTS], call.options)


def _show(call: Call[None], rows: Iterable[Row]) -> int:
    """Print the explanation of every partition that is asked for."""
    console = Console()
    is_whole, is_empty = True, True
    unknown: list[tuple[str, str]] = []
    lines = None if call.is_for_person else RowLines(call.output, "statement", _STATEMENT_COLUMNS)
    for row in rows:
        is_whole &= not is_failed_look(row["error_class"])
        is_empty = False
        if lines is not None:
            _write_rows(lines, row)
            continue
        if row["fix"] is not None:
            unknown.append((row["root"], row["topic"]))
        if row["fix"] is None or call.is_wide:
            _write(console, row, with_root=len(call.line[ROOTS]) > 1, is_wide=call.is_wide)
    if is_empty and call.is_for_person:
        console.print("no partition of these topics" if call.are_topics_chosen else "no partitions")
    write_lines(console, unknown_config_notes(unknown, call.line[CONFIG_FILES]))
    write_notes(call.notes, is_for_person=call.is_for_person, is_wide=call.is_wide)
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def _write_rows(lines: RowLines, row: Row) -> None:
    """Write a partition: one JSON object, or a CSV row per predicate."""
    lines.add("explanation", row)
    if lines.is_csv:
        for statement in row["statements"]:
            lines.add("statement", {**{name: row[name] for name in _PLACE}, **statement})


def _write(console: Console, row: Row, *, with_root: bool, is_wide: bool) -> None:
    place = f" in {printable(row['root'])}" if with_root else ""
    console.print(Text(f"{partition_name(row)}{place}", style="bold"), soft_wrap=True)
    if row["error"] is not None:
        console.print(Text(f"  {printable(row['error'])}", style="bold red"), soft_wrap=True)
        return
    later = {answer["about"]: answer for answer in row["after_recovery"]}
    lines = []
    for answer in row["answers"]:
        about = answer["about"]
        if about in later:
            # The answer's own text says both in one sentence.
            now = next(s["text"] for s in row["statements"] if s["code"] == answer["held_by"])
            lines.append(f"  {about}: {_answer({**answer, 'text': now})}")
            lines.append(f"    after a recovery: {_answer(later[about])}")
        else:
            lines.append(f"  {about}: {_answer(answer)}")
        if answer["way_out"]:
            lines.append(f"    the way out: {answer['way_out']}")
    write_paragraphs(console, lines, is_wide=is_wide)
    # What an answer has told stands there once.
    told = {answer["held_by"] for answer in row["answers"]}
    statements = [
        {**each, "way_out": ""} if each["code"] in told else each for each in row["statements"]
    ]
    write_table(console, _STATEMENT_TABLE, statements, is_wide=is_wide, footer=[""])


def _answer(answer: Row) -> str:
    if answer["is_due"]:
        return str(answer["text"])
    at = [] if answer["from_ms"] is None else [f"at {time_text(answer['from_ms'])}"]
    will_be = ", or ".join([*at, *([f"when {answer['condition']}"] if answer["condition"] else [])])
    when = f"; will be: {will_be}" if will_be else ""
    return f"not now ({_predicate(answer['held_by'])}): {answer['text']}{when}"


def is_code(word: str) -> bool:
    """Whether a word may be a code, and no place.

    A word in lower case has to be an existing code.
    """
    return _CODE.fullmatch(word) is not None or word.upper() in all_codes()


def all_codes() -> dict[str, list[tuple[str, str, str]]]:
    """Return kind, meaning and way out of every code; some have several."""
    codes: dict[str, list[tuple[str, str, str]]] = {}
    for code, kind in KINDS.items():
        # Of no finding in particular: words in capitals stand for its places, as on the page.
        advice = _PLACEHOLDER.sub(
            lambda match: match[1].upper(), kind.advice.replace("{start}", "")
        )
        told = ("finding", kind.meaning, advice)
        codes.setdefault(code.value, []).append(told)
    for reason, refusal in REASONS.items():
        codes.setdefault(reason.value, []).append(("reason", refusal.means, refusal.way))
    for predicate, refusal in PREDICATES.items():
        codes.setdefault(predicate, []).append(("predicate", refusal.means, refusal.way))
    for guard, refusal in GUARDS.items():
        codes.setdefault(guard, []).append(("refusal", refusal.means, refusal.way))
    for status, (means, way) in MEANINGS.items():
        codes.setdefault(str(status.value), []).append(("exit status", means, way))
    return codes


def explain_codes(words: Sequence[str], output: OutputFormat) -> int:
    """Print what codes mean, and return the exit status.

    Raises:
        ConfigError: There is no such code; those that are one were printed.
    """
    codes = all_codes()
    words = [word.upper() for word in words]
    words = [word if word in codes else predicate_of(word) for word in words]
    unknown = [word for word in words if word not in codes]
    told = [
        dict(zip(_CODE_COLUMNS, (word, *each), strict=True))
        for word in words
        for each in codes.get(word, ())
    ]
    # CSV begins with a line of names: without a row there is none.
    if told and output is not OutputFormat.TABLE:
        lines = RowLines(output, "code", _CODE_COLUMNS)
        for row in told:
            lines.add("code", row)
    else:
        for row in told:
            write_paragraphs(Console(), [f"{row['code']} ({row['kind']}): {row['means']}"])
            write_paragraphs(Console(), [f"  {row['way_out'] or 'nothing has to be done'}"])
    if unknown:
        near = [name for word in unknown if (name := nearest_name(word, codes)) is not None]
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        what = "is no directory, and no code"
        if len(unknown) > 1:
            what = "are no directories, and no codes"
        raise ConfigError("ROOT", ", ".join(unknown), f"{what}{meant}")
    return ExitCode.DONE


_PARTITIONS: Final = Work(name="explain", prepare=_prepare, operate=_explain, show=_show)
EXPLAIN: Final = _Explain()
