"""Forty mistakes of one line that somebody could make, one at a time.

Each is known by its text, which stands exactly once in the product: it may move to another file.
"""

from typing import Final, NamedTuple


class Mistake(NamedTuple):
    """A text of the product, and what a careless hand makes of it."""

    area: str
    breaks: str  # what the program then does, in one sentence
    text: str
    instead: str
    tests: tuple[str, ...]  # files below tests/ that are likely to fail, the likeliest first


_KERNELS: Final = "storage_core/kernels"
_COMPACTION: Final = "storage_core/maintenance/compaction"
_RETENTION: Final = "storage_core/maintenance/retention"

MISTAKES: Final = (
    # Formats.
    Mistake(
        "formats",
        "The checksum column calls every batch good.",
        "table[CRC_OK, row] = 1 if is_good else 0\n    return is_good",
        "table[CRC_OK, row] = 1\n    return is_good",
        (f"{_KERNELS}/test_batch_scan.py", "storage_core/records/test_reader.py"),
    ),
    Mistake(
        "formats",
        "A varint that is cut off is read beyond the end of its bytes.",
        "limit = min(end, position + MAX_VARINT_BYTES)",
        "limit = position + MAX_VARINT_BYTES",
        (f"{_KERNELS}/test_varint.py", f"{_KERNELS}/test_record_scan.py"),
    ),
    Mistake(
        "formats",
        "A length field that no batch can have is taken for a batch.",
        "if size < MIN_ENTRY_LENGTH + LENGTH_OVERHEAD:",
        "if size < LENGTH_OVERHEAD:",
        (f"{_KERNELS}/test_batch_scan.py", "storage_core/records/test_reader.py"),
    ),
    # Kernels.
    Mistake(
        "kernels",
        "The dirty part begins a segment too early where it begins at a segment's base.",
        "while dirty < active and segments[BASE_OFFSET, dirty + 1] <= first_dirty:",
        "while dirty < active and segments[BASE_OFFSET, dirty + 1] < first_dirty:",
        (f"{_KERNELS}/test_compaction_walk.py", f"{_COMPACTION}/test_plan.py"),
    ),
    Mistake(
        "kernels",
        "A log shrinks below retention.bytes: the segment across the limit goes, too.",
        "                    if excess < size:\n",
        "                    if excess <= 0:\n",
        (f"{_KERNELS}/test_retention_walk.py", f"{_RETENTION}/test_plan.py"),
    ),
    Mistake(
        "kernels",
        "A segment as old as retention.ms goes one millisecond too early.",
        "if clock - np.uint64(timestamp) <= np.uint64(age_limit):",
        "if clock - np.uint64(timestamp) < np.uint64(age_limit):",
        (f"{_KERNELS}/test_retention_walk.py", f"{_RETENTION}/test_plan.py"),
    ),
    Mistake(
        "kernels",
        "A tombstone stays one cleaning too long where its horizon is this very moment.",
        "DELETE_HORIZON_BIT != 0 and table[BASE_TIMESTAMP, row] <= now_ms",
        "DELETE_HORIZON_BIT != 0 and table[BASE_TIMESTAMP, row] < now_ms",
        (f"{_KERNELS}/test_batch_judge.py", f"{_COMPACTION}/test_retention_rules.py"),
    ),
    Mistake(
        "kernels",
        "Compaction keeps the records of an aborted transaction.",
        "                producers[PRODUCER_HAS_ABORTED_DATA, who] = 1\n"
        "                discard[row] = 1\n",
        "                producers[PRODUCER_HAS_ABORTED_DATA, who] = 1\n",
        ("storage_core/log/test_transaction_tracker.py",),
    ),
    Mistake(
        "kernels",
        "A new tombstone may go at the next cleaning: delete.retention.ms is left out.",
        "new_horizon = self._plan.now_ms + self._plan.delete_retention_ms",
        "new_horizon = self._plan.now_ms",
        (f"{_KERNELS}/test_batch_judge.py", f"{_COMPACTION}/test_retention_rules.py"),
    ),
    # The loader.
    Mistake(
        "loader",
        "A recovery point beyond what the checkpoint says hides an unflushed tail.",
        "self._log.recovery_point = min(self._point_checkpoint, self._log.log_end_offset)",
        "self._log.recovery_point = max(self._point_checkpoint, self._log.log_end_offset)",
        ("storage_core/maintenance/recovery/test_golden_recoveries.py",),
    ),
    Mistake(
        "loader",
        "A log that is cut at a segment's first offset loses that segment's file as well.",
        "for base_offset in [base for base in log.base_offsets if base > offset]:",
        "for base_offset in [base for base in log.base_offsets if base >= offset]:",
        ("storage_core/maintenance/truncation/test_points.py",),
    ),
    Mistake(
        "loader",
        "The epoch that begins right at the cut stays in the epoch file.",
        "while self._entries and self._entries[-1].start_offset >= end_offset:",
        "while self._entries and self._entries[-1].start_offset > end_offset:",
        ("storage_core/log/test_leader_epoch_cache.py",),
    ),
    Mistake(
        "loader",
        "The last stable offset stops at an abort marker, not behind it.",
        "last_stable_offset=min(others, default=marker_offset + 1),",
        "last_stable_offset=min(others, default=marker_offset),",
        ("storage_core/log/test_producer_rules.py", "storage_core/log/test_log_loader.py"),
    ),
    # Commits and undo.
    Mistake(
        "commit",
        "A small file gets its name before its bytes are on the disk.",
        "                    sync(file)\n            except OSError as error:\n"
        "                if is_written or error.errno not in NO_ROOM:\n",
        "            except OSError as error:\n"
        "                if is_written or error.errno not in NO_ROOM:\n",
        ("storage_core/store/test_local.py", "crash/test_writes.py"),
    ),
    Mistake(
        "commit",
        "A killed commit is finished over files that somebody has changed since.",
        "        if expected.get(name) != actual.get(name):\n",
        "        if (name in expected) != (name in actual):\n",
        ("storage_core/commit/test_rehearsal.py", "storage_core/commit/test_claim.py"),
    ),
    Mistake(
        "commit",
        "A killed commit is finished after the machine was started anew.",
        "if not claim.is_of_this_boot or claim.location is None:",
        "if claim.location is None:",
        ("storage_core/commit/test_claimed_trash.py",),
    ),
    Mistake(
        "commit",
        "An undo takes the files of the oldest commit first, and ends with those of the newest.",
        "return [read_commit(folder) for folder in reversed(folders)]",
        "return [read_commit(folder) for folder in folders]",
        ("storage_core/commit/test_undo.py",),
    ),
    Mistake(
        "commit",
        "The trash says that files are kept before they are.",
        "    return [*steps, record]\n\n\ndef _end_of_leftovers(",
        "    return [record, *steps]\n\n\ndef _end_of_leftovers(",
        ("storage_core/commit/test_keep.py",),
    ),
    Mistake(
        "commit",
        "A file that was renamed to .deleted just now is removed by the age of its records.",
        "return max(entry.facts.st_ctime_ns, entry.facts.st_mtime_ns) // 1_000_000",
        "return entry.facts.st_mtime_ns // 1_000_000",
        ("storage_core/commit/test_purge.py",),
    ),
    # Limits of retention, and guards.
    Mistake(
        "retention",
        "retention.bytes=0, which keeps nothing, is no limit.",
        "return self.retention_bytes if self.deletes and self.retention_bytes >= 0 else None",
        "return self.retention_bytes if self.deletes and self.retention_bytes > 0 else None",
        (f"{_KERNELS}/test_retention_walk.py", f"{_RETENTION}/test_plan.py"),
    ),
    Mistake(
        "retention",
        "A high watermark of 0 counts as none: segments that nobody has replicated go.",
        "            marks != NO_ENTRY, np.maximum(marks, log_starts), walk.AT_LOG_END\n",
        "            marks > 0, np.maximum(marks, log_starts), walk.AT_LOG_END\n",
        ("storage_core/maintenance/test_listings.py", "pylog_spark/tasks/test_observation.py"),
    ),
    Mistake(
        "retention",
        "Whoever allows a large deletion switches off the guard against a wrong clock.",
        "if Reason.CLOCK_PAST_RETENTION not in limits.overrides:",
        "if Reason.DELETES_TOO_MUCH not in limits.overrides:",
        ("pylog_spark/operations/test_deletion_guard.py",),
    ),
    # Roots.
    Mistake(
        "roots",
        "The holder of a lease commits up to its very end, whatever the other clocks say.",
        "return not self.is_released and now_ms < self.expires_ms - margin",
        "return not self.is_released and now_ms < self.expires_ms",
        ("storage_core/store/test_lease.py",),
    ),
    Mistake(
        "roots",
        "A ledger or a trash may lie in another broker's log directory.",
        "            if is_marked or folder in directories:\n",
        "            if folder in directories:\n",
        ("pylog_spark/run/test_guards.py",),
    ),
    # Options.
    Mistake(
        "options",
        "The default of delete.retention.ms is a tenth of Kafka's.",
        '        default=86_400_000,\n        unit="ms",\n'
        '        broker="log.cleaner.delete.retention.ms",\n',
        '        default=8_640_000,\n        unit="ms",\n'
        '        broker="log.cleaner.delete.retention.ms",\n',
        ("storage_core/config/test_log_config.py",),
    ),
    Mistake(
        "options",
        "64GiB in an option is 64 GB.",
        '    "gib": 2**30,\n',
        '    "gib": 10**9,\n',
        ("pylog_spark/options/test_kinds.py",),
    ),
    # The command line.
    Mistake(
        "command line",
        "A run whose disk failed ends with status 0.",
        "    if failures or pc.any(failed).as_py():\n",
        "    if pc.any(failed).as_py():\n",
        ("pylog_spark/operations/test_failing_disks.py",),
    ),
    Mistake(
        "command line",
        "The JSON of doctor has no read_bytes.",
        '        "read_bytes": diagnosis.read_bytes,\n        "engine": diagnosis.engine,\n',
        '        "engine": diagnosis.engine,\n',
        ("pylog_spark/test_answers.py",),
    ),
    Mistake(
        "command line",
        "The table of past runs shows the bytes before under the heading after.",
        'size_column("after", "bytes_after", rank=5),',
        'size_column("after", "bytes_before", rank=5),',
        ("pylog_spark/cli/test_runs.py",),
    ),
    # The ledger.
    Mistake(
        "ledger",
        "A repeated append writes a run's rows twice.",
        "            if last is not None and last >= number:\n",
        "            if last is not None and last > number:\n",
        ("pylog_spark/ledger/test_ledger.py",),
    ),
    # Engines and tasks.
    Mistake(
        "engines",
        "The local engine takes a task that failed in a worker for one without rows.",
        "            running.fail(task, *failure)\n",
        "            running.done(task, [])\n",
        ("pylog_spark/engines/test_local_engine.py",),
    ),
    Mistake(
        "engines",
        "A partition whose work failed counts as skipped.",
        "status = Status.FAILED if reason is None else Status.SKIPPED",
        "status = Status.SKIPPED",
        ("pylog_spark/tasks/test_failures.py",),
    ),
    # Reading, and the Spark source.
    Mistake(
        "spark source",
        "A stream with a limit never reads a partition that is small beside the others.",
        "partition: min(end, starts[partition] + max(1, most *",
        "partition: min(end, starts[partition] + max(0, most *",
        ("pylog_spark/source/test_stream.py",),
    ),
    Mistake(
        "reading",
        "A read that is asked up to an offset returns that offset's record as well.",
        "        inside &= offset < wanted.end_offset\n",
        "        inside &= offset <= wanted.end_offset\n",
        ("storage_core/reading/test_ranges.py",),
    ),
    Mistake(
        "reading",
        "A committed read returns the records of a transaction that is still open.",
        "self.wanted = replace(self.wanted, end_offset=stable_offset)",
        "self.wanted = replace(self.wanted, end_offset=end_offset)",
        ("pylog_spark/source/test_ranges.py", "pylog_spark/source/test_object_stores.py"),
    ),
    # Several brokers.
    Mistake(
        "cluster",
        "An election is predicted with an ELR although the ISR is as large as it has to be.",
        "            if len(isr) < state.min_insync_replicas:\n",
        "            if len(isr) <= state.min_insync_replicas:\n",
        ("cluster/storage/test_elections.py",),
    ),
    Mistake(
        "cluster",
        "Damage is healed by one donor although another one differs.",
        "len(candidates) // 2 + 1) if quorum else len(candidates)",
        "len(candidates) // 2 + 1) if quorum else 1",
        ("cluster/storage/test_healing.py",),
    ),
    Mistake(
        "cluster",
        "A transplant takes a directory with the id of the source's topic for the target's.",
        "        if topic_id not in {None, new.target.topic_id}:\n",
        "        if topic_id not in {None, new.target.topic_id, new.source.place.topic_id}:\n",
        ("cluster/transplant/test_plan.py",),
    ),
    # Object stores.
    Mistake(
        "object stores",
        "An object that must be new replaces another writer's on S3.",
        'return self._put_if(key, content, "", {"IfNoneMatch": "*"})',
        'return self._put_if(key, content, "", {})',
        ("s3/test_s3_objects.py",),
    ),
    Mistake(
        "object stores",
        "Of two runs that publish a partition, the later one replaces the other's generation.",
        "etag = objects.put_if_match(key, content, head.etag)",
        "etag = objects.put(key, content)",
        ("storage_core/store/test_managed_store.py",),
    ),
)
