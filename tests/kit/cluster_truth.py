"""What Kafka did with the directories of stopped clusters, held against what an audit says.

``golden/clusters/ORIGIN.toml`` says how they were made. Truncations and losses are compared for
each outcome in which one broker led throughout, losses only where every replica came back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.golden_data import GOLDEN, unpack_archive

CLUSTERS: Final = sorted(path.name for path in (GOLDEN / "clusters").iterdir() if path.is_dir())

Row = Mapping[str, Any]
_LOSS_CLASSES: Final = ("committed", "uncommitted", "unknown")
_MOST_RECORD_OVERHEAD: Final = 12


class Cluster:
    """One cluster, unpacked."""

    def __init__(self, name: str, folder: Path) -> None:
        source = GOLDEN / "clusters" / name
        unpack_archive(source / "before.tar.gz", folder)
        case = json.loads((source / "case.json").read_text())
        self.truth: Row = json.loads((source / "truth.json").read_text())
        self.roots = [folder / root["path"] for root in case["roots"]]
        self.states = [
            {**row, "config": case["topics"].get(row["topic"], {}).get("config", {})}
            for row in case["partitions"]
        ]

    def complaints(self, answers: Sequence[Row]) -> list[str]:
        """Return where an audit says other things than Kafka did."""
        by_key = {(row["topic"], row["partition"], row["topic_id"]): row for row in answers}
        found = []
        for want in self.truth["before"]:
            key = (want["topic"], want["partition"], want["topic_id"])
            if key not in by_key:
                found.append(f"{key} is missing")
                continue
            found += [f"{key[0]}-{key[1]}: {each}" for each in self._judge(want, by_key[key])]
        futures = {
            (replica["broker"], replica["dir"])
            for row in answers
            for replica in row["replicas"]
            if replica.get("future")
        }
        found += [
            f"{each['dir']} is no future replica"
            for each in self.truth["beside"]
            if each.get("future") and (each["broker"], each["dir"]) not in futures
        ]
        return found

    def _judge(self, want: Row, got: Row) -> Iterator[str]:
        said = {row["broker"]: row for row in got["replicas"] if not row.get("future")}
        there = {row["broker"]: row for row in want["on_disk"]}
        for broker in want.get("replicas", []):
            there.setdefault(broker, _nothing(broker))
        if said.keys() != there.keys():
            yield f"replicas of {sorted(said)}, not {sorted(there)}"
            return
        for broker, truth in there.items():
            yield from _judge_replica(broker, truth, said[broker])
        offset = (want["first_difference"] or {}).get("offset")
        if (got["divergence"] or {}).get("offset") != offset:
            yield f"divergence {got['divergence']}, not {offset}"
        usable = {
            broker: row
            for broker, row in there.items()
            if "log_end" in row and (not want["in_metadata"] or broker in want.get("replicas", []))
        }
        yield from _judge_high_watermark(want, usable, got["high_watermark"])
        candidates = {row["broker"]: row for row in got["candidates"]}
        if candidates.keys() != usable.keys():
            yield f"candidates {sorted(candidates)}, not {sorted(usable)}"
            return
        for outcome in self.truth["outcomes"]:
            row = _row_of(outcome, want)
            leader = None if row is None else _lone_leader(outcome, row)
            if row is not None and leader is not None and leader in candidates:
                case = _Case(outcome, row, there, usable, leader)
                for each in case.judge(candidates[leader]):
                    yield f"{outcome['outcome']}, broker {leader} leads: {each}"


class _Case:
    """One partition after one outcome, in which one broker led."""

    def __init__(
        self,
        outcome: Row,
        row: Row,
        there: Mapping[int, Row],
        usable: Mapping[int, Row],
        leader: int,
    ) -> None:
        self._ended = bool(outcome["ended_at_start"])
        self._row = row
        self._there = there
        self._usable = usable
        self._leader = leader

    def judge(self, said: Row) -> Iterator[str]:
        if not self._ended:
            yield from self._judge_cuts(said)
        if "final_difference" in self._row and not self._ended:
            yield from self._judge_silence(said)
        if self._row.get("lost") is not None:
            yield from self._judge_losses(said)

    def _judge_cuts(self, said: Row) -> Iterator[str]:
        present = {each["broker"] for each in self._row["replicas"]}
        for broker, replica in self._usable.items():
            if (
                broker == self._leader
                or broker not in present
                or broker not in (self._row["isr"] or [])
            ):
                continue
            end = replica["log_end"]
            told = [
                each
                for each in self._row["truncations"]
                if each["broker"] == broker
                and each["by"] != "future"
                and (each["by"] == "restart" or each["offset"] < end)
            ]
            again = [each["offset"] for each in told if each["by"] == "restart"]
            truth = None
            if told:
                lowest = min(each["offset"] for each in told)
                truth = (again[-1], True) if again else (lowest, False)
            mine = [
                (each["offset"], each["restart"])
                for each in said["truncations"]
                if each["broker"] == broker and (each["restart"] or each["offset"] < end)
            ]
            if (mine[0] if mine else None) != truth:
                yield f"broker {broker} (log end {end}) is cut at {mine}, Kafka cut it at {truth}"

    def _judge_silence(self, said: Row) -> Iterator[str]:
        """Compare what differs afterwards, though every replica is in sync."""
        end = self._usable[self._leader]["log_end"]
        silent = [
            each["same_until"]
            for each in said["truncations"]
            if not each["restart"]
            and each["broker"] in self._usable
            and each["same_until"] < min(each["offset"], end)
        ]
        ends = {each["broker"]: each["log_end"] for each in self._row["replicas"]}
        # A cut inside a batch takes the whole batch: such a follower is short.
        short = [
            ends[broker]
            for broker in self._row["isr"] or []
            if ends.get(broker) is not None and ends[broker] < ends[self._leader]
        ]
        final = self._row["final_difference"]
        truth = min([*short, *([] if final is None else [final["offset"]])], default=None)
        if min(silent, default=None) != truth:
            yield f"replicas differ at {silent} afterwards, Kafka's differed at {truth}"

    def _judge_losses(self, said: Row) -> Iterator[str]:
        truth, lost = self._row["lost"], said["lost"]
        is_damaged = bool(self._there[self._leader]["damage"])
        assigned = self._usable.keys()
        is_whole = all("log_end" in replica for replica in self._there.values())
        if is_whole and said["safe"] != (lost["committed"] == 0 and not is_damaged):
            yield f"safe {said['safe']}, and {lost['committed']} committed records are lost"
        if self._ended or not set(self._row["isr"] or []) >= assigned:
            return
        if (lost["records"], _offsets(lost["ranges"])) != (
            truth["records"],
            _offsets(truth["ranges"]),
        ):
            yield f"loses {lost}, Kafka lost {truth['records']} {truth['ranges'][:4]}"
        if not truth.get("committed_at_least", 0) <= lost["committed"] <= truth["records"]:
            least = truth["committed_at_least"]
            yield f"{lost['committed']} committed, outside {least} to {truth['records']}"
        # Kafka's measure has a few bytes of each record beside its key and its value.
        if not 0 <= truth["bytes"] - lost["bytes"] <= _MOST_RECORD_OVERHEAD * truth["records"]:
            yield f"loses {lost['bytes']} bytes, Kafka lost {truth['bytes']}"
        if sum(lost[part] for part in _LOSS_CLASSES) != lost["records"]:
            yield f"{lost} does not add up"
        if lost["records"] and not any(each["records"] for each in lost["held_by"]):
            yield "nobody has what is lost"
        if not truth["records"] and not is_damaged and not said["safe"]:
            yield "not safe, but nothing was lost"


def _nothing(broker: int) -> Row:
    return {
        "broker": broker,
        "missing": True,
        "log_start": 0,
        "log_end": 0,
        "epochs": [],
        "damage": [],
        "high_watermark_checkpoint": None,
    }


def _judge_replica(broker: int, truth: Row, said: Row) -> Iterator[str]:
    if truth.get("missing"):
        if not said.get("missing") or said["log_end"] != 0:
            yield f"broker {broker} has nothing, which is not said"
        return
    if "log_end" not in truth:
        if not said.get("error"):
            yield f"broker {broker}: no error, Kafka says {truth['open_error'][:90]}"
        return
    for key, name in (
        ("log_start", "log_start"),
        ("log_end", "log_end"),
        ("epochs", "epochs"),
        ("high_watermark_checkpoint", "high_watermark"),
        ("clean", "clean"),
    ):
        if said.get(name) != truth[key]:
            yield f"broker {broker}: {name} {said.get(name)}, not {truth[key]}"
    mine, kafkas = (
        {(each["producer_id"], each["first_offset"]) for each in row["open_transactions"]}
        for row in (said, truth)
    )
    if mine != kafkas:
        yield f"broker {broker}: open transactions {sorted(mine)}, not {sorted(kafkas)}"
    if bool(said["damage"]) != bool(truth["damage"]):
        yield f"broker {broker}: damage {said['damage']}, Kafka sees {truth['damage']}"


def _judge_high_watermark(want: Row, usable: Mapping[int, Row], said: int | None) -> Iterator[str]:
    brokers = want.get("isr") or want.get("elr") or want.get("last_known_elr") or list(usable)
    in_sync = [usable[broker] for broker in brokers if broker in usable]
    if in_sync:
        low = max(min(row["high_watermark_checkpoint"] or 0, row["log_end"]) for row in in_sync)
        high = min(row["log_end"] for row in in_sync)
        if said is None or not min(low, high) <= said <= max(low, high):
            yield f"high watermark {said}, outside of {low} and {high}"


def _row_of(outcome: Row, want: Row) -> Row | None:
    names = ("topic", "partition", "topic_id")
    rows: list[Row] = outcome["partitions"]
    for row in rows:
        if all(row[name] == want[name] for name in names):
            return row
    return None


def _lone_leader(outcome: Row, row: Row) -> int | None:
    """Return the one leader of an outcome; None if another one led in it, too."""
    alone = outcome["led_alone"].get(f"{row['topic']}-{row['partition']}")
    led = [each["leader"] for each in row["elections"] if each["leader"] >= 0]
    if alone in led:
        led = led[led.index(alone) :]
    leader = row["leader"]
    return leader if leader is not None and leader >= 0 and set(led) <= {leader} else None


def _offsets(ranges: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    return {(at, epoch) for first, last, epoch in ranges for at in range(first, last + 1)}
