"""Golden rounds of compaction as calls of this project, in process and spread over segments."""

import dataclasses
import enum
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit import CommitPlan, commit
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.json_values import from_json, to_json
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.log.open_transactions import TransactionTracker
from storage_core.maintenance.compaction.commit import plan_commit, verify_inputs
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.key_exchange import FOLD, KeyBucket, send_segment
from storage_core.maintenance.compaction.key_sidecar import SidecarFolder
from storage_core.maintenance.compaction.merged import (
    ExchangedGroup,
    MergedIndex,
    decode_start,
    encode_start,
    facts_for_pass_two,
    fold_facts,
    group_of_segment,
    merge_indexes,
)
from storage_core.maintenance.compaction.partial import (
    PartialIndex,
    index_segment,
)
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import (
    CleanableRange,
    CleanRequest,
    CompactionPlan,
    choose_range,
    group_segments,
    plan_compaction,
)
from storage_core.maintenance.compaction.rewrite import CleanedGroup, RewriteStats, clean_groups
from storage_core.maintenance.partition_state import PartitionState
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from tests.kit.compare import Exactness
from tests.kit.golden_data import Golden
from tests.kit.one_partition import clean_partition

# What golden/ORIGIN.toml says of rounds whose case.json does not.
_DEFAULT_MAP_BYTES: Final = 134_217_728
_DEFAULT_LOAD_FACTOR: Final = 0.9
# What CleanResult calls the numbers, and case.json.
ANSWERS: Final = {
    "next_offset": "next",
    "messages_read": "messages_read",
    "messages_written": "messages_written",
    "bytes_read": "bytes_read",
    "bytes_written": "bytes_written",
    "map_messages_read": "map_messages_read",
    "invalid_messages_read": "invalid_messages_read",
}
# It depends on the build of a compressor.
_BYTES_OF_A_COMPRESSOR: Final = "bytes_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """The arguments of a round but for its directory."""

    config: LogConfig
    cleaner: CleanerConfig
    request: CleanRequest

    def clean(
        self,
        directory: Path,
        *,
        threads: int | None = None,
        sidecars: SidecarFolder | None = None,
    ) -> CleanResult:
        """Make the round in process, with key sidecars in a folder if one is given."""
        if sidecars is not None:
            return self.with_cleaner(key_sidecars=str(sidecars.folder)).clean(
                directory, threads=threads
            )
        return clean_partition(
            directory,
            config=self.config,
            cleaner=self.cleaner,
            request=self.request,
            threads=threads,
        )

    def load(self, store: LogStore) -> LoadedLog:
        """Load the log as the round does."""
        return load_log(
            store,
            config=self.config,
            cleaner=self.cleaner,
            now_ms=self.request.now_ms,
            log_start_checkpoint=self.request.checkpoints.log_start_offset or 0,
            high_watermark=self.request.checkpoints.high_watermark,
        )

    def choose(self, log: LoadedLog) -> CleanableRange:
        """Return what the round may clean of a log."""
        return choose_range(PartitionState.of_log(log), self.config, self.request)

    def plan(self, log: LoadedLog) -> CompactionPlan:
        """Return the plan of the round."""
        return plan_compaction(
            log,
            self.config,
            self.cleaner,
            self.choose(log),
            now_ms=self.request.now_ms,
            hash_key=bytes(range(16)),
        )

    def with_cleaner(self, **changes: Any) -> "Cleaning":
        """Return the same round by another cleaner."""
        return dataclasses.replace(self, cleaner=dataclasses.replace(self.cleaner, **changes))

    def with_request(self, **changes: Any) -> "Cleaning":
        """Return another request by the same cleaner."""
        return dataclasses.replace(self, request=dataclasses.replace(self.request, **changes))


def cleaning_of(golden: Golden) -> Cleaning:
    """Return the round that Kafka made in a golden case, with Kafka's own hash."""
    case = golden.case
    params = case["params"]
    overrides = {key: str(value) for key, value in case["config"].items()}
    if "segment.bytes" in overrides:  # smaller than a topic may say
        overrides["internal.segment.bytes"] = overrides.pop("segment.bytes")
    is_chosen_by_manager = bool(params.get("manager"))
    return Cleaning(
        config=LogConfig.from_topic_overrides(overrides),
        cleaner=CleanerConfig(
            dedupe_buffer_bytes=params.get("map.bytes", _DEFAULT_MAP_BYTES),
            load_factor=params.get("load", _DEFAULT_LOAD_FACTOR),
            offset_map_hash=OffsetMapHash.MD5,
        ),
        request=CleanRequest(
            now_ms=case["clock_ms"],
            checkpoints=PartitionCheckpoints(
                high_watermark=params.get("hw"),
                log_start_offset=params.get("log.start"),
                cleaner_offset=(
                    params.get("checkpoint", case.get("previous_checkpoint"))
                    if is_chosen_by_manager
                    else None
                ),
            ),
            first_dirty_offset=None if is_chosen_by_manager else params.get("first.dirty", 0),
            first_uncleanable_offset=params.get("first.uncleanable"),
        ),
    )


def exactness_of(golden: Golden) -> Exactness:
    """Return how alike the result has to be to Kafka's."""
    return Exactness(golden.case["compare"])


def expected_numbers(golden: Golden) -> dict[str, int]:
    """Return what Kafka answered, by the names of CleanResult."""
    expected = golden.case["expected"]
    return {
        ours: expected[theirs]
        for ours, theirs in ANSWERS.items()
        if exactness_of(golden) is Exactness.BYTES or ours != _BYTES_OF_A_COMPRESSOR
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRound:
    """A round whose cleaned segments lie in scratch files: all but the commit has been done."""

    log: LoadedLog  # the log as it was loaded
    plan: CompactionPlan
    groups: tuple[CleanedGroup, ...]  # what the commit will put into place

    def commit_of(self, group_count: int | None = None) -> CommitPlan:
        """Return the operations of the load and of the first groups, or of all."""
        return plan_commit(self.log, self.plan, self.groups[:group_count])


def prepare(
    directory: Path, cleaning: Cleaning, *, attempt: str = "prepared", scratch: Path | None = None
) -> PreparedRound:
    """Make both passes of a round, in process, and leave its scratch files.

    Args:
        scratch: Where they are left; None for the directory.
    """
    store = LocalStore(directory)
    log = cleaning.load(store)
    plan = cleaning.plan(log)
    index = index_round(store, plan)
    groups = tuple(
        clean_groups(
            store,
            plan,
            index,
            group_segments(plan, index.end_offset),
            TransactionTracker(),
            scratch=lambda: nullcontext(scratch or directory),
            attempt=attempt,
        )
    )
    return PreparedRound(log=log, plan=plan, groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRound:
    """What a round answered whose segments and groups were worked on one by one."""

    next_offset: int
    map_messages_read: int
    keys: int
    stats: RewriteStats

    @property
    def numbers(self) -> dict[str, int]:
        """The same numbers as in a CleanResult."""
        return {
            "next_offset": self.next_offset,
            "map_messages_read": self.map_messages_read,
            **dataclasses.asdict(self.stats),
        }


class Way(enum.StrEnum):
    """How the keys of a spread round come together."""

    MEMORY = "merged in memory"
    EXCHANGE = "exchanged by hash"


def clean_spread(
    directory: Path, cleaning: Cleaning, *, backwards: bool = True, way: Way = Way.MEMORY
) -> SpreadRound | None:
    """Make a round as Spark spreads it: every step from bytes, as in another process.

    Args:
        cleaning: The round, without a limit of keys that matters.
        backwards: Whether segments and groups come newest first.

    Returns:
        None where the log is not due.
    """
    store = LocalStore(directory)
    log = cleaning.load(store)
    if not cleaning.choose(log).is_due:
        commit(log.plan, store)
        return None
    text = to_json(cleaning.with_cleaner(dedupe_buffer_bytes=None).plan(log))
    plan = from_json(CompactionPlan, text)
    step = -1 if backwards else 1
    if way is Way.EXCHANGE:
        groups, stats = _exchange(directory, text, step)
    else:
        groups, stats = _merge(directory, text, step)
    verify_inputs(store, plan)
    commit(plan_commit(log, plan, groups), store)
    return SpreadRound(
        next_offset=plan.end_offset,
        map_messages_read=stats.messages_read,
        keys=stats.keys,
        stats=sum((group.stats for group in groups), RewriteStats()),
    )


def _merge(directory: Path, text: str, step: int) -> tuple[list[CleanedGroup], IndexStats]:
    plan = from_json(CompactionPlan, text)
    packed = [
        index_segment(LocalStore(directory), plan, segment, threads=2).to_bytes()
        for segment in plan.round_segments[::step]
    ]
    content = merge_indexes(plan, [PartialIndex.from_bytes(data) for data in packed]).to_bytes()
    merged = MergedIndex.from_bytes(content)
    manifests = [
        _clean_one_group(directory, text, MergedIndex.from_bytes(content), number)
        for number in range(len(merged.groups))[::step]
    ]
    return [from_json(CleanedGroup, manifest) for manifest in manifests[::step]], merged.index.stats


def _exchange(
    directory: Path, text: str, step: int, buckets: int = 3
) -> tuple[list[CleanedGroup], IndexStats]:
    plan = from_json(CompactionPlan, text)
    numbers = range(len(plan.round_segments))[::step]
    sent = [
        message
        for number in numbers
        for message in send_segment(LocalStore(directory), plan, number, buckets=buckets, threads=2)
    ]
    sent.sort(key=lambda message: (message.bucket, message.kind))
    facts = {message.number: message.content for message in sent if message.bucket == FOLD}
    folded = fold_facts(plan, facts)
    groups = [ExchangedGroup(plan=plan, start=start) for start in folded.groups]
    group_of = group_of_segment(plan)
    for number, content in facts.items():
        groups[group_of[number]].put_facts(number, facts_for_pass_two(content))
    keys = 0
    for bucket_number in range(buckets):
        bucket = KeyBucket(plan)
        for message in sent:
            if message.bucket == bucket_number:
                bucket.hear(message.kind, message.number, message.content)
        keys += bucket.key_count
        for number, ordinals in bucket.survivors():
            groups[group_of[number]].put_survivors(number, ordinals)
    cleaned = []
    for number in range(len(groups))[::step]:
        start = decode_start(encode_start(folded.groups[number]))
        merged = MergedIndex(index=groups[number].index(), groups=(start,), needs_map=False)
        cleaned.append(_clean_one_group(directory, text, merged, 0, attempt=f"group-{number}"))
    stats = IndexStats(bytes_read=folded.bytes_read, messages_read=folded.messages_read, keys=keys)
    return [from_json(CleanedGroup, manifest) for manifest in cleaned[::step]], stats


def _clean_one_group(
    directory: Path, plan_text: str, merged: MergedIndex, number: int, attempt: str | None = None
) -> str:
    plan = from_json(CompactionPlan, plan_text)
    start = merged.groups[number]
    (cleaned,) = clean_groups(
        LocalStore(directory),
        plan,
        merged.index,
        [[segment for segment in plan.segments if segment.base_offset in start.base_offsets]],
        TransactionTracker.from_state(json.loads(start.tracker)),
        scratch=lambda: nullcontext(directory),
        attempt=attempt or f"group-{number}",
    )
    return to_json(cleaned)
