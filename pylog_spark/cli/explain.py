"""``pylog explain``: the reason for keeping a partition, or a code's meaning. It says why a
partition is not cleaned or deleted."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Final

import typer

from pylog_spark.cli.runner import Call, Work, prepare_roots, show
from pylog_spark.exit_code import MEANINGS, ExitCode, is_failed_look
from pylog_spark.operations.explain import explain
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import CONFIG_FILES, ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.refusals import (
    PREDICATES,
    REASONS,
    all_guards,
    all_remarks,
    explain_errors,
    predicate_of,
)
from pylog_spark.report import partition_name, text_column
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.run_report import unknown_config_notes
from pylog_spark.text import printable
from pylog_spark.view import (
    Block,
    Column,
    OutputLine,
    Row,
    Table,
    TableKind,
    Verbatim,
    View,
    lines_of,
)
from storage_core.catalog.topic_filter import nearest_name
from storage_core.errors import ConfigError
from storage_core.maintenance.explain import Statement
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
_STATEMENT_TABLE: Final = TableKind(
    columns=(
        text_column("about", "about"),
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
    """Explains partitions, or codes in place of roots. Of a code it says the meaning."""

    def __call__(self, line: CommandLine) -> int:
        """Run the command, and return its exit status."""
        words = line[ROOTS]
        if any(is_code(word) for word in words) and not any(map(os.path.exists, words)):
            return explain_codes(line)
        return _PARTITIONS(line)


def _explain(call: Call, _session: None) -> Iterable[Row]:
    for note in dump_notes(call.options):
        typer.echo(printable(note), err=True)
    return explain(call.line[ROOTS], call.options)


def _view(call: Call, rows: Iterable[Row]) -> View:
    """Return the explanation of every partition that is asked for."""
    failed: list[Row] = []

    def explained() -> Iterator[Row]:
        for row in rows:
            if is_failed_look(row["error_class"]):
                failed.append(row)
            yield row

    def lines() -> Iterator[OutputLine]:
        for row in explained():
            yield OutputLine("explanation", row)
            if call.output is OutputFormat.CSV:
                place = {name: row[name] for name in _PLACE}
                yield from lines_of("statement", ({**place, **each} for each in row["statements"]))

    def blocks() -> Iterator[Block]:
        is_empty = True
        unknown: list[tuple[str, str]] = []
        for row in explained():
            is_empty = False
            if row["fix"] is not None:
                unknown.append((row["root"], row["topic"]))
            if row["fix"] is None or call.is_wide:
                yield from _blocks(row, with_root=len(call.line[ROOTS]) > 1)
        if is_empty:
            yield "no partition of these topics" if call.are_topics_chosen else "no partitions"
        yield from map(Verbatim, unknown_config_notes(unknown, call.line[CONFIG_FILES]))

    return View(
        lines=lines(),
        csv=("statement", _STATEMENT_COLUMNS),
        blocks=blocks(),
        notes=call.notes,
        status=lambda: ExitCode.PARTLY_FAILED if failed else ExitCode.DONE,
    )


def _blocks(row: Row, *, with_root: bool) -> Iterator[Block]:
    """Yield the explanation of a partition."""
    place = f" in {row['root']}" if with_root else ""
    yield Verbatim(f"{partition_name(row)}{place}", "bold")
    if row["error"] is not None:
        yield Verbatim(f"  {row['error']}", "bold red")
        return
    later = {answer["about"]: answer for answer in row["after_recovery"]}
    for answer in row["answers"]:
        about = answer["about"]
        if about in later:
            # The answer's own text says both in one sentence.
            now = next(s["text"] for s in row["statements"] if s["code"] == answer["held_by"])
            yield f"  {about}: {_answer({**answer, 'text': now})}"
            yield f"    after a recovery: {_answer(later[about])}"
        else:
            yield f"  {about}: {_answer(answer)}"
        if answer["way_out"]:
            yield f"    the way out: {answer['way_out']}"
    # What an answer says stands there once.
    answered = {answer["held_by"] for answer in row["answers"]}
    statements = [
        {**each, "way_out": ""} if each["code"] in answered else each for each in row["statements"]
    ]
    yield Table(kind=_STATEMENT_TABLE, rows=statements)
    yield ""


def _answer(answer: Row) -> str:
    if answer["is_due"]:
        return str(answer["text"])
    at = [] if answer["from_ms"] is None else [f"at {time_text(answer['from_ms'])}"]
    will_be = ", or ".join([*at, *([f"when {answer['condition']}"] if answer["condition"] else [])])
    when = f"; will be: {will_be}" if will_be else ""
    return f"not now ({_predicate(answer['held_by'])}): {answer['text']}{when}"


def is_code(word: str) -> bool:
    """Whether a word may be a code, and no place. A word in lower case has to be an existing
    code."""
    return _CODE.fullmatch(word) is not None or word.upper() in _spellings(all_codes())


def _spellings(codes: Iterable[str]) -> dict[str, str]:
    """Return codes by their spelling in capitals."""
    return {code.upper(): code for code in codes}


def all_codes() -> dict[str, list[tuple[str, str, str]]]:
    """Return kind, meaning and way out of every code; some have several."""
    codes: dict[str, list[tuple[str, str, str]]] = {}
    for code, kind in KINDS.items():
        # Of no finding in particular: words in capitals stand for its places, as on the page.
        advice = _PLACEHOLDER.sub(
            lambda match: match[1].upper(), kind.advice.replace("{start}", "")
        )
        codes.setdefault(code.value, []).append(("finding", kind.meaning, advice))
    for reason, refusal in REASONS.items():
        codes.setdefault(reason.value, []).append(("reason", refusal.means, refusal.way))
    for predicate, refusal in PREDICATES.items():
        codes.setdefault(predicate, []).append(("predicate", refusal.means, refusal.way))
    for guard, refusal in all_guards().items():
        codes.setdefault(guard, []).append(("refusal", refusal.means, refusal.way))
    for remark, refusal in all_remarks().items():
        codes.setdefault(remark, []).append(("remark", refusal.means, refusal.way))
    for error, refusal in explain_errors().items():
        codes.setdefault(error, []).append(("error", refusal.means, refusal.way))
    for status, (means, way) in MEANINGS.items():
        codes.setdefault(str(status.value), []).append(("exit status", means, way))
    return codes


def explain_codes(line: CommandLine) -> int:
    """Print what codes mean, and return the exit status."""
    codes = all_codes()
    spellings = _spellings(codes)
    words = [spellings.get(word.upper(), word.upper()) for word in line[ROOTS]]
    words = [word if word in codes else predicate_of(word) for word in words]
    unknown = [word for word in words if word not in codes]
    rows = [
        dict(zip(_CODE_COLUMNS, (word, *each), strict=True))
        for word in words
        for each in codes.get(word, ())
    ]
    # CSV begins with a line of names: without a row there is none.
    if rows:
        blocks: list[Block] = []
        for row in rows:
            blocks.append(f"{row['code']} ({row['kind']}): {row['means']}")
            blocks.append(f"  {row['way_out'] or 'nothing has to be done'}")
        lines = lines_of("code", rows)
        view = View(lines=lines, csv=("code", _CODE_COLUMNS), blocks=blocks, status=ExitCode.DONE)
        show(view, line)
    if unknown:
        near = [name for word in unknown if (name := nearest_name(word, codes)) is not None]
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        what = "is no directory, and no code"
        if len(unknown) > 1:
            what = "are no directories, and no codes"
        raise ConfigError("ROOT", ", ".join(unknown), f"{what}{meant}")
    return ExitCode.DONE


_PARTITIONS: Final = Work(name="explain", prepare=prepare_roots, operate=_explain, view=_view)
EXPLAIN: Final = _Explain()
