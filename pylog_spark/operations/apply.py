"""Apply a saved plan with its own clock, options and configs. Nothing is done beyond the plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pylog_spark.engines.choice import Place
from pylog_spark.house import addition_for
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.options import JobOptions
from pylog_spark.options.choices import EngineChoice
from pylog_spark.outcomes import Action
from pylog_spark.run.plan_file import SavedPlan, read_plan_file
from pylog_spark.run.run_report import RunReport
from storage_core.clock import Clock
from storage_core.errors import ConfigError

# What upkeep plans, by name.
OPERATIONS: Final[Mapping[str, Callable[..., RunReport]]] = {
    Action.COMPACT: compact,
    Action.RECOVER: recover,
    Action.RETAIN: retain,
    Action.RUN: run_nightly,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """Options given anew to apply a plan. None leaves an option as the plan has it."""

    dry_run: bool = False  # only look which partitions are still as planned
    ledger: str | None = None
    trash: str | None = None  # folder that keeps what is replaced or removed
    mark_clean: bool | None = None  # False for no marker of a clean shutdown
    # Guards that are switched off; a plan switches none off.
    overrides: frozenset[str] = frozenset()
    engine: EngineChoice = EngineChoice.AUTO
    master: str | None = None
    metrics_file: str | None = None  # file that receives the run's numbers for Prometheus
    metrics_push: str | None = None  # pushgateway that receives them


def options_of(saved: SavedPlan, path: Path | None, apply_options: ApplyOptions) -> JobOptions:
    """Return the options of a run that applies a plan.

    Args:
        path: Its file; None for a plan that is in memory alone.
    """
    options = saved.options
    return replace(
        options,
        now_ms=saved.now_ms,
        plan_in=None if path is None else str(path.absolute()),
        dry_run=apply_options.dry_run,
        ledger=apply_options.ledger or options.ledger,
        trash=apply_options.trash or options.trash,
        mark_clean=options.mark_clean
        if apply_options.mark_clean is None
        else apply_options.mark_clean,
        limits=replace(options.limits, overrides=apply_options.overrides),
        engine=apply_options.engine,
        master=apply_options.master,
        metrics_file=apply_options.metrics_file,
        metrics_push=apply_options.metrics_push,
    )


def apply_plan(
    place: Place, path: str | Path, apply_options: ApplyOptions, *, clock: Clock | None = None
) -> RunReport:
    """Apply exactly the plan of a file. A partition that changed since is refused, and the file
    that changed is named.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        clock: For the times in the ledger.

    Returns:
        The report of the operation; its exit status is 3 if a partition was refused.
    """
    saved = read_plan_file(path)
    return apply_saved(place, saved, options_of(saved, Path(path), apply_options), clock=clock)


def apply_saved(
    place: Place, saved: SavedPlan, options: JobOptions, *, clock: Clock | None = None
) -> RunReport:
    """Apply a plan that was read; its file is not read again.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        clock: For the times in the ledger.

    Returns:
        As ``apply_plan``.
    """
    operation = OPERATIONS.get(saved.action) or addition_for("operations", saved.action)
    if operation is None:
        raise ConfigError("PLAN", options.plan_in, f"has an unknown action: {saved.action}")
    roots = [root.location for root in saved.roots]
    return operation(place, roots, options, clock=clock, saved=saved)
