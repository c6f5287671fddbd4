"""Golden recoveries, loads and truncations as calls of this project."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.store.base import LogStore
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_data import Golden, Side
from tests.kit.one_partition import recover_partition, truncate_partition

# What our results call the numbers, and case.json.
_ANSWERS: Final = {
    "log_end_offset": "leo",
    "log_start_offset": "log_start",
    "recovery_point": "recovery_point",
    "truncated": "truncated",
}


def settings_of(golden: Golden) -> dict[str, Any]:
    """Return config, cleaner and clock of a case."""
    case = golden.case
    overrides = {key: str(value) for key, value in case["config"].items()}
    if "segment.bytes" in overrides:  # smaller than a topic may say
        overrides["internal.segment.bytes"] = overrides.pop("segment.bytes")
    return {
        "config": LogConfig.from_topic_overrides(overrides),
        "cleaner": CleanerConfig(),
        "now_ms": case["clock_ms"],
    }


def loading_of(golden: Golden) -> dict[str, Any]:
    """Return the arguments of a recovery or a load, but for the directory."""
    params = golden.case["params"]
    return settings_of(golden) | {
        "recovery_point": params.get("recovery.point", 0),
        "log_start_offset": params.get("log.start", 0),
        "clean_shutdown": golden.case["operation"] == "load",
    }


def plan_golden(golden: Golden, store: LogStore, **changes: Any) -> LoadedLog:
    """Load as Kafka did; nothing is written."""
    return plan_recovery(store, **loading_of(golden) | changes)


def redo(golden: Golden, directory: Path) -> Mapping[str, Any]:
    """Do to a directory what Kafka did, and return the answer."""
    if golden.case["operation"] == "truncate":
        params = golden.case["params"]
        truncation = truncate_partition(
            directory,
            **settings_of(golden),
            to=params["to"],
            log_start_offset=params.get("log.start", 0),
        )
        return asdict(truncation)
    return asdict(recover_partition(directory, **loading_of(golden)))


def problems_of(golden: Golden, tmp_path: Path) -> list[str]:
    """Do what Kafka did and return all in which the outcome is another; none is expected.

    Where Kafka threw, an error is expected, and a partition that is as it was.
    """
    directory = golden.unpack(tmp_path / "ours")
    before = read_tree(directory)
    expected = golden.case["expected"]
    try:
        answer = redo(golden, directory)
    except PylogError as error:
        if "error" not in expected:
            return [f"refused: {error}"]
        return [] if read_tree(directory) == before else ["refused, but changed something"]
    if "error" in expected:
        return [f"Kafka threw {expected['error']}, we answered {answer}"]
    problems = [
        f"{ours}: expected {expected[theirs]}, found {answer[ours]}"
        for ours, theirs in _ANSWERS.items()
        if ours in answer and answer[ours] != expected[theirs]
    ]
    if "segments" in answer and answer["segments"] != len(expected["segments"]):
        problems.append(f"expected {len(expected['segments'])} segments: {answer['segments']}")
    after = golden.unpack(tmp_path / "kafka", Side.AFTER)
    found = compare_partitions(read_tree(after), read_tree(directory), Exactness.BYTES)
    return problems + [str(difference) for difference in found]
