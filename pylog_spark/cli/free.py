"""``pylog free``: list removable data, an order, and the commands. Nothing is done."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from pylog_spark.cli.runner import Call, ProgressLine, Tasks, Work, engine_text, prepare_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.compact.driver import EXACT_NOTE
from pylog_spark.operations.free_space.driver import FreePlan, FreeStep, Source, plan_free_space
from pylog_spark.options.declared import (
    ASSUME_DEFAULTS,
    CONFIG_FILES,
    DRY_RUN,
    HIGH_WATERMARK,
    NEED,
    NOW_MS,
    ROOTS,
    SERVER_PROPERTIES,
    SETTINGS_OF_RUN,
    TOPIC_DUMP,
    TRASH,
)
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.report import number_column, size_column, size_text, text_column
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
    lines_of,
)
from storage_core.maintenance.verification.prescription import recover_command, recovered_together
from storage_core.store.open_store import split_location
from storage_core.wording import count_text

# Of ``_row``.
_STEP_COLUMNS: Final = (
    *("step", "source", "root", "topic", "partitions", "frees_bytes", "frees_at_most_bytes"),
    *("total_bytes", "needs_bytes", "refused_by", "losses", "command", "is_after_recovery"),
)
# What a purge, and a job, has to be told again to decide the same.
_TOLD_TO_PURGE: Final = (CONFIG_FILES, SERVER_PROPERTIES, SETTINGS_OF_RUN, NOW_MS)
_TOLD_TO_JOB: Final = (*_TOLD_TO_PURGE, TOPIC_DUMP, ASSUME_DEFAULTS, HIGH_WATERMARK)
_NOTES: Final = {
    Source.RECOVERY: "the directory was not cleanly shut down: the logs are put in order first",
    Source.LEFTOVERS: "brokers have renamed it to delete it: nobody reads it",
    Source.TRASH: "the run cannot be undone any more then",
    Source.GENERATIONS: "no run before the last one can be undone any more then",
    Source.EXPIRED: "expired by the topic's own rules",
    Source.COMPACTION: "superseded records",
}


_RANGES_NOTE: Final = (
    "compaction was read and filtered, and its figures are exact but for ranges: segments of these "
    "topics expire, too, and their step comes first"
)


def _operate(call: Call, place: Any) -> FreePlan:
    with ProgressLine(is_shown=call.has_progress) as progress:
        return plan_free_space(
            place, call.line[ROOTS], call.options, on_progress=progress.on_progress
        )


def _view(call: Call, plan: FreePlan) -> View:
    need = call.line[NEED]
    # A recovery is no step that frees: it has no number of its own.
    first = 1 - sum(step.source is Source.RECOVERY for step in plan.steps[:1])
    totals = accumulate(step.frees_bytes for step in plan.steps)
    rows = [
        _row(number, step, total, _command(call, plan, step))
        for number, (step, total) in enumerate(zip(plan.steps, totals, strict=True), first)
    ]
    is_enough = need is None or plan.frees_bytes >= need
    status = ExitCode.DONE if is_enough else ExitCode.FINDINGS
    whole = {
        "need_bytes": need,
        "frees_bytes": plan.frees_bytes,
        "frees_at_most_bytes": plan.frees_at_most_bytes,
        "is_enough": is_enough,
        "offsets_partitions": plan.offsets_partitions,
        "engine": plan.engine,
        "largest_topics": [{"topic": name, "bytes": size} for name, size in plan.largest],
        "notes": [*_plan_notes(plan), *_trash_notes(call, plan), *call.notes],
    }
    return View(
        lines=[
            *lines_of("free_step", rows),
            *lines_of("failure", plan.failures),
            OutputLine("free", whole),
        ],
        csv=("free_step", _STEP_COLUMNS),
        blocks=_blocks(call, plan, rows, is_enough=is_enough),
        status=ExitCode.PARTLY_FAILED if plan.failures else status,
    )


def _row(number: int, step: FreeStep, total: int, command: str) -> dict[str, Any]:
    return {
        "step": number,
        "source": step.source.value,
        "root": step.root,
        "topic": step.topic,
        "partitions": step.partitions,
        "frees_bytes": step.frees_bytes,
        "frees_at_most_bytes": step.frees_at_most_bytes,
        "total_bytes": total,
        "needs_bytes": step.needs_bytes,
        "refused_by": step.refused_by,
        "losses": [
            {
                "group": loss.group,
                "topic": loss.partition.topic,
                "partition": loss.partition.partition,
                "committed_offset": loss.committed_offset,
                "log_start_offset": loss.log_start_offset,
            }
            for loss in step.losses
        ],
        "command": command,
        "is_after_recovery": step.is_after_recovery,
    }


def _what(row: Row) -> str:
    return (
        split_location(row["place"])[1]
        if row["source"] == Source.TRASH
        else row["topic"] or NOTHING
    )


def _command(call: Call, plan: FreePlan, step: FreeStep) -> str:
    """Return the command that does a step, as a person types it."""
    if step.source is Source.TRASH:
        again = [*_options_again(call.line, [CONFIG_FILES, NOW_MS])]
        trash = ["--trash", str(call.options.trash), "--older-than", "0s"]
        return shlex.join(["pylog", "purge", *trash, *again])
    roles = {root.location: root.role for root in call.roots}
    together = recovered_together(roles)[step.root]
    where = [*together, "--role", roles[step.root].value]
    if step.source in {Source.LEFTOVERS, Source.GENERATIONS}:
        # A broker's own delay is of its topics; generations wait for this.
        wait = ["--older-than", "0s"] if step.source is Source.GENERATIONS else []
        again = [*_options_again(call.line, _TOLD_TO_PURGE)]
        return shlex.join(["pylog", "purge", *where, *wait, *again])
    keeping = _trash_again(call, plan, together)
    if step.source is Source.RECOVERY:
        again = [*keeping, *_options_again(call.line, _TOLD_TO_JOB)]
        return " ".join([recover_command(together), *map(shlex.quote, again)])
    # Of a topic that is compacted, too, compaction takes what has expired.
    is_retention = step.source is Source.EXPIRED and not step.is_compacted
    job = "retain" if is_retention else "compact"
    # What a guard refuses is to be looked at first; the look says what allows it.
    look = [] if step.refused_by is None and not step.is_after_recovery else ["--dry-run"]
    again = [*keeping, *_options_again(call.line, _TOLD_TO_JOB)]
    return shlex.join(["pylog", job, *where, "--topics", str(step.topic), *look, *again])


def _trash_again(call: Call, plan: FreePlan, roots: Collection[str]) -> Sequence[str]:
    """Return a job's trash option as typed; none on its roots' disk. The trash would fill that
    disk."""
    trash = call.options.trash
    managed = {root.location for root in call.roots if root.role.facts.keeps_generations}
    if trash is None or not managed.isdisjoint(roots):
        return []
    if plan.beside_trash.isdisjoint(roots):
        return [TRASH.label, trash]
    # A trash that no option names is that of a config file, which the command is told again.
    return [TRASH.label, ""] if call.line.written(TRASH) is None else []


def _options_again(line: CommandLine, options: Sequence[Option[Any]]) -> Iterator[str]:
    """Yield the options that were said, as they are typed."""
    for option in options:
        written = line.written(option)
        for value in written if isinstance(written, list) else [written]:
            if value is not None:
                yield from (option.label, str(value))


def _blocks(call: Call, plan: FreePlan, rows: Sequence[Row], *, is_enough: bool) -> Iterator[Block]:
    # A trash is no second root where there is one log directory.
    only = call.locations[0] if len(call.roots) == 1 else None
    yield Table(
        kind=_STEP_TABLE,
        rows=[{**row, "place": row["root"], "root": only or row["root"]} for row in rows],
    )
    if not rows:
        yield "nothing could go: nothing is left over, expired or dirty"
    yield from _verdict(call.line[NEED], rows, plan.frees_bytes, plan.frees_at_most_bytes)
    if any(step.source is Source.EXPIRED and not step.is_after_recovery for step in plan.steps):
        yield _groups_note(plan)
    yield from (*_plan_notes(plan), *_trash_notes(call, plan), *call.notes)
    yield f"looked at with {engine_text(plan.engine, call)}"
    # One command of several runs in a trash.
    for command in dict.fromkeys(row["command"] for row in rows):
        numbers = ", ".join(str(row["step"]) for row in rows if row["command"] == command)
        yield f"  {numbers}: {command}"
    if not is_enough and plan.largest:
        topics = ", ".join(f"{topic} ({size_text(size)})" for topic, size in plan.largest)
        yield f"retention leaves most of {topics}; what a shorter one would free:"
        role = call.roots[0].role.value
        words = ["pylog", "retain", *call.line[ROOTS], "--role", role]
        words += ["--topics", plan.largest[0][0], "--set", "retention.ms=86400000", "--dry-run"]
        words += _trash_again(call, plan, call.locations)
        yield f"  {shlex.join([*words, *_options_again(call.line, _TOLD_TO_JOB)])}"
    for row in plan.failures:
        yield Sentence(f"{row['root']}: {row['error']}", "bold red")


def _verdict(need: int | None, rows: Sequence[Row], sure: int, most: int) -> Iterator[str]:
    if need is None:
        if rows:
            yield f"all of it frees {_between(sure, most)}"
        return
    enough = next((row["step"] for row in rows if row["total_bytes"] >= need), None)
    if enough is not None:
        which = f"steps 1 to {enough} free" if enough > 1 else f"step {enough} frees"
        yield f"{size_text(need)} are needed: {which} it"
    elif most >= need:
        yield (
            f"This frees {_between(sure, most)} of the {size_text(need)} you need; --exact shows "
            "how much compaction frees"
        )
    else:
        yield (
            f"This frees at most {size_text(most)} of the {size_text(need)} you need; "
            f"{size_text(need - most)} are missing"
        )


def _plan_notes(plan: FreePlan) -> Iterator[str]:
    """Yield the plan's notes, promising exact figures only where all are."""
    has_range = any(step.frees_bytes < step.frees_at_most_bytes for step in plan.steps)
    for note in plan.notes:
        yield _RANGES_NOTE if has_range and note == EXACT_NOTE else note


def _trash_notes(call: Call, plan: FreePlan) -> Iterator[str]:
    """Yield a warning if commands leave out the trash. The commands cannot be undone then."""
    beside = [
        root.location
        for root in call.roots
        if root.location in plan.beside_trash and not root.role.facts.keeps_generations
    ]
    jobs = {Source.RECOVERY, Source.EXPIRED, Source.COMPACTION}
    if beside and any(step.source in jobs for step in plan.steps):
        yield (
            f"the commands for {', '.join(beside)} keep nothing in the trash on its disk, so "
            "that they free space at once: they cannot be undone"
        )


def _groups_note(plan: FreePlan) -> str:
    if not plan.offsets_partitions:
        return (
            "no partition of __consumer_offsets is in these directories: nobody can say here which "
            "groups would lose their place"
        )
    lost = {loss.group for step in plan.steps for loss in step.losses}
    who = count_text(len(lost), "group") if lost else "no group"
    what = f"{who} would lose {'their' if len(lost) > 1 else 'its'} place"
    return (
        f"{what}, of those whose commits are in the {plan.offsets_partitions} partitions of "
        "__consumer_offsets here"
    )


def _between(sure: int, most: int) -> str:
    return size_text(sure) if sure == most else f"{size_text(sure)} to {size_text(most)}"


def _note(row: Row) -> str:
    parts = [_NOTES[Source(row["source"])]]
    if row["needs_bytes"]:
        parts.append(f"needs up to {size_text(row['needs_bytes'])} meanwhile")
    if row["is_after_recovery"]:
        parts.append("once the recovery is done; guards and groups are asked then")
    if row["refused_by"] is not None:
        parts.append(f"a guard refuses it ({row['refused_by']}): look at the dry run first")
    parts += [
        f"group {loss['group']} would lose its place in {loss['topic']}-{loss['partition']}: it is "
        f"at {loss['committed_offset']:,}, the log would start at {loss['log_start_offset']:,}"
        for loss in row["losses"]
    ]
    return "; ".join(parts)


_STEP_TABLE: Final = TableKind(
    columns=(
        Column(heading="step", cell=lambda row: str(row["step"]), is_number=True),
        text_column("what", "source"),
        Column(heading="topic or run", cell=_what, folds=True),
        number_column("partitions", "partitions", rank=3),
        Column(
            heading="frees",
            cell=lambda row: _between(row["frees_bytes"], row["frees_at_most_bytes"]),
            is_number=True,
        ),
        size_column("sum for sure", "total_bytes", rank=1),
        number_column(
            "groups", lambda row: len({loss["group"] for loss in row["losses"]}) or None, rank=2
        ),
    ),
    note=_note,
)

FREE: Final = Work(
    name="free",
    prepare=lambda line: prepare_roots(line.with_switch(DRY_RUN)),
    operate=_operate,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
