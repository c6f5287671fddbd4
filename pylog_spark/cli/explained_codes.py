"""``pylog explain CODE``: what a finding, a reason, a guard's code or an exit status means."""

import re
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from pylog_spark.cli.row_lines import RowLines
from pylog_spark.exit_code import MEANINGS, ExitCode
from pylog_spark.options.choices import OutputFormat
from pylog_spark.refusals import GUARDS, PREDICATES, REASONS, predicate_of
from pylog_spark.text_table import write_paragraphs
from storage_core.catalog.topic_filter import nearest_name
from storage_core.errors import ConfigError
from storage_core.maintenance.verification.finding_kinds import KINDS

_CODE: Final = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*|[0-9]{1,3}")
_PLACE: Final = re.compile(r"\{(\w+)\}")
_COLUMNS: Final = ("code", "kind", "means", "way_out")


def is_code(word: str) -> bool:
    """Whether a word may be a code, and no place; in lower case it has to be one."""
    return _CODE.fullmatch(word) is not None or word.upper() in all_codes()


def all_codes() -> dict[str, list[tuple[str, str, str]]]:
    """Return kind, meaning and way out of every code; some have several."""
    codes: dict[str, list[tuple[str, str, str]]] = {}
    for code, kind in KINDS.items():
        # Of no finding in particular: words in capitals stand for its places, as on the page.
        advice = _PLACE.sub(lambda match: match[1].upper(), kind.advice.replace("{start}", ""))
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
        dict(zip(_COLUMNS, (word, *each), strict=True))
        for word in words
        for each in codes.get(word, ())
    ]
    # CSV begins with a line of names: without a row there is none.
    if told and output is not OutputFormat.TABLE:
        lines = RowLines(output, "code", _COLUMNS)
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
