"""Golden deletion passes as calls of this project."""

from pathlib import Path
from typing import Any

from storage_core.commit import commit
from storage_core.log.log_loader import LogLoader
from storage_core.maintenance.retention.partition import RetainResult, Sweep, retain_log
from storage_core.maintenance.retention.plan import RetentionRules
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.kit.golden_cleaning import cleaning_of
from tests.kit.golden_data import Golden
from tests.kit.golden_loading import settings_of
from tests.kit.one_partition import clean_partition, retain_partition, sweep_at_rest


def offsets_of(golden: Golden) -> dict[str, Any]:
    """Return high watermark and log start of a case."""
    params = golden.case["params"]
    return {"high_watermark": params.get("hw"), "log_start_offset": params.get("log.start")}


def retain_golden(golden: Golden, directory: Path) -> RetainResult:
    """Make the deletion pass that Kafka made, as it does: open, sweep, close."""
    return retain_partition(directory, **settings_of(golden), **offsets_of(golden))


def retain_golden_and_keep(golden: Golden, directory: Path) -> int:
    """Make the same pass, but leave the ``.deleted`` files; return how many segments went."""
    store = LocalStore(directory)
    settings = settings_of(golden)
    log = LogLoader(store, **settings, clean_shutdown=True).load()
    decision = retain_log(
        log,
        RetentionRules.of(settings["config"]),
        now_ms=settings["now_ms"],
        high_watermark=log.log_end_offset,
        unlink=False,
    )
    commit(log.close().plan, store)
    return len(decision.removals)


def sweep_golden(golden: Golden, store: LogStore, **changes: Any) -> Sweep:
    """Plan the same pass over the log at rest, the log start from its checkpoint."""
    offsets = offsets_of(golden)
    return sweep_at_rest(
        store,
        **settings_of(golden),
        **{
            "log_start_checkpoint": offsets["log_start_offset"] or 0,
            "high_watermark": offsets["high_watermark"],
        }
        | changes,
    )


def clean_and_retain(golden: Golden, directory: Path) -> RetainResult:
    """Make the round and the deletion pass that one of Kafka's cleaner threads made."""
    cleaning = cleaning_of(golden)
    clean_partition(
        directory, config=cleaning.config, cleaner=cleaning.cleaner, request=cleaning.request
    )
    return retain_partition(
        directory,
        config=cleaning.config,
        cleaner=cleaning.cleaner,
        now_ms=cleaning.request.now_ms,
        log_start_checkpoint=cleaning.request.checkpoints.log_start_offset or 0,
        high_watermark=cleaning.request.checkpoints.high_watermark,
    )
