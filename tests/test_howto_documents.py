"""``docs/howto``: the commands of each page run one after the other, as they stand."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from pylog_spark.run.upkeep import cost_of_round
from tests.kit.cluster_truth import Cluster
from tests.kit.golden_broker import unpack_broker
from tests.kit.source_disk import write_properties
from tests.kit.tier_archives import unpack_tier

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "howto"
PAGES: Final = sorted(path.stem for path in FOLDER.glob("*.md"))
BLOCK: Final = re.compile(r"^```(sh|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MIB: Final = 1 << 20


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the blocks of a page that are executed, each with its language."""
    return BLOCK.findall((FOLDER / f"{page}.md").read_text())


@dataclass(slots=True)
class Reader:
    """Somebody who follows a page.

    Attributes:
        pylog: Calls the program.
        places: What of the page's paths is here; a later one may lie in an earlier one.
        ended: Exit status and output of each command, by the command as the page has it.
    """

    pylog: Callable[..., Any]
    places: dict[str, str]
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)

    def follow(self, page: str) -> None:
        """Run all commands of a page."""
        for language, text in blocks(page):
            if language == "sh":
                for line in text.splitlines():
                    self.run(line)
            elif language == "yaml":
                Path(self.here("/data/topics.yaml")).write_text(text)

    def here(self, text: str) -> str:
        """Return a text of the page with the places that stand for its own."""
        for place, here in self.places.items():
            text = text.replace(place, here)
        return text

    def run(self, line: str) -> tuple[int, str]:
        """Run a line of the page; return the exit status and output of one of ours."""
        command, _, target = self.here(line).partition(" > ")
        words = shlex.split(command)
        if words[0] == "pylog":
            result = self.pylog(*words[1:])
            self.ended[line] = result.exit_code, result.stdout + result.stderr
            if target:
                Path(target).write_text(result.stdout)
        else:
            subprocess.run(words, check=True)
        return self.ended.get(line, (0, ""))


@pytest.fixture
def reader(pylog, tmp_path: Path, monkeypatch) -> Reader:
    """One who has a directory that a broker closed an hour ago, and has not installed Spark."""
    kafka = unpack_broker(tmp_path / "var" / "kafka")
    monkeypatch.setattr("pylog_spark.session.is_spark_installed", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data").mkdir()
    places = {"/var/lib/kafka": str(kafka), "/data/": f"{tmp_path}/data/"}
    return Reader(pylog, places)


@pytest.fixture
def archivist(reader: Reader, tmp_path: Path) -> Reader:
    """One who has a mirror and an archive, though on a disk."""
    config = tmp_path / "topics.yaml"
    config.write_text("topics:\n  orders-by-id: {cleanup.policy: compact}\n")
    reader.places = {
        "s3://backup/kafka": reader.places["/var/lib/kafka"],
        "s3://archive/kafka": str(tmp_path / "archive"),
        "/etc/pylog/topics.yaml": str(config),
        "/var/lib/pylog/ledger": str(tmp_path / "ledger"),
        "/srv/restored": str(tmp_path / "restored"),
        "--settle 60s": "--settle 0s",
    }
    return reader


def test_every_page_is_followed_here():
    text = Path(__file__).read_text()
    assert [page for page in PAGES if f'"{page}"' not in text] == []
    assert len(PAGES) == 10


@pytest.mark.thorough
def test_the_broker_that_will_not_start(reader: Reader):
    kafka = Path(reader.places["/var/lib/kafka"])
    (kafka / ".kafka_cleanshutdown").unlink()
    log = max((kafka / "clickstream-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-7])
    answers: list[tuple[int, str]] = []
    run = reader.pylog

    def remember(*words: object) -> Any:
        result = run(*words)
        answers.append((result.exit_code, result.stdout))
        return result

    reader.pylog = remember
    reader.places["/var/tmp/salvage"] = str(kafka.parent / "salvage")  # noqa: S108  # of the page
    reader.follow("broker-will-not-start")
    first, look, cut, last, shown, back = answers
    assert (shown[0], back[0]) == (0, 0)
    assert "clickstream-0" in shown[1]
    assert (first[0], last[0]) == (1, 0)
    assert first[1].startswith("The broker would start, but ")
    assert look[0] == 3
    assert "CUTS_BELOW_HIGH_WATERMARK" in look[1]
    assert cut[0] == 0
    assert "clickstream-0" in cut[1]
    assert last[1].startswith("Just start the broker")
    assert list((kafka.parent / "salvage").rglob("clickstream-0/cut-*.raw"))


@pytest.mark.thorough
def test_the_answer_of_the_doctor_in_the_readme_is_one(reader: Reader):
    kafka = Path(reader.places["/var/lib/kafka"])
    (kafka / ".kafka_cleanshutdown").unlink()
    log = max((kafka / "clickstream-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-7])
    readme = (FOLDER.parents[1] / "README.md").read_text()
    _, _, shown = readme.partition("```\n$ ")
    line, _, shown = shown.partition("\n")
    block, _, _ = shown.partition("```\n")
    assert line == "pylog doctor /var/lib/kafka"
    answer = " ".join(reader.run(line)[1].split())
    parts = block.split("...\n")
    assert len(parts) > 2
    for part in parts:
        assert " ".join(reader.here(part).split()) in answer


@pytest.mark.thorough
def test_the_disks_that_are_gone(reader: Reader, tmp_path: Path):
    disks = tmp_path / "disks"
    Cluster("wiped-disk", disks)
    reader.places["/disks/"] = f"{disks}/"
    reader.follow("disks-are-gone")
    # Losses that an audit counts are findings.
    assert [int(status) for status, _ in reader.ended.values()] == [1, 1, 0, 0, 0, 0, 0]
    who, formatted, waiting, planned, cut, left, _ = [text for _, text in reader.ended.values()]
    assert "Committed records of 3 partitions are lost whoever leads" in who
    assert "then start 3: 58 records are lost, committed. Without that: start 3," in formatted
    assert "534 records are lost" in formatted
    assert "Start 1, then 2: 3 partitions stay without a leader, nothing is lost" in waiting
    assert "3 planned" in planned
    assert "3 done" in cut
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "cuts.json",
        "election",
        "salvage",
        "trash",
    ]
    assert "whoever leads" not in left
    files = [
        tmp_path / "data" / "election" / f"{each}.json" for each in ("reassignment", "restore")
    ]
    orders = [json.loads(each.read_text())["partitions"][0]["replicas"] for each in files]
    assert orders == [[1, 2], [1, 2, 3]]


@pytest.mark.thorough
def test_the_tier_that_is_left(reader: Reader, tmp_path: Path):
    tier = unpack_tier("plain", tmp_path / "lost")
    reader.places["/mnt/tier"] = str(tier.archive)
    (tmp_path / "data" / "b1").mkdir()
    write_properties(tmp_path / "data" / "b1", 1)
    (tmp_path / "data" / "controller").mkdir()
    reader.follow("only-the-tier-is-left")
    assert [status for status, _ in reader.ended.values()] == [0] * 4, reader.ended
    _, planned, attached, rebuilt = [text for _, text in reader.ended.values()]
    assert "1,241" in planned
    assert "start the controllers first" not in attached
    assert "52 partitions on 1 broker" in rebuilt


@pytest.mark.thorough
def test_the_disk_that_is_full(reader: Reader):
    reader.follow("free-disk-now")
    kafka = Path(reader.places["/var/lib/kafka"])
    assert {status for status, _ in reader.ended.values()} == {0}
    (free, look, retained, _, compacted, shorter) = [text for _, text in reader.ended.values()]
    assert "steps 1" in free
    assert "pylog compact" in free
    assert "clickstream-0" in look
    assert "2 done" in retained
    assert "2 done" in compacted
    assert "2 planned" in shorter
    assert sum(path.stat().st_size for path in kafka.glob("orders-by-id-*/*.log")) < 400_000


@pytest.mark.thorough
def test_the_directory_of_zookeepers_time(reader: Reader, tmp_path: Path):
    kafka = Path(reader.places["/var/lib/kafka"])
    for path in (kafka / "__cluster_metadata-0").iterdir():
        path.unlink()
    (kafka / "__cluster_metadata-0").rmdir()
    (kafka / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=c\n")
    reader.follow("zookeeper-directory")
    assert [status for status, _ in reader.ended.values()] == [0] * 6
    (init,) = (text for line, (_, text) in reader.ended.items() if "config init" in line)
    assert '#  "orders-by-id":' in init
    looked, done = (text for line, (_, text) in reader.ended.items() if "pylog compact" in line)
    assert "2 planned" in looked
    assert "2 done" in done
    assert "12 partitions of 5 topics left alone" in done
    (verified,) = (text for line, (_, text) in reader.ended.items() if "verify" in line)
    assert "nothing found" in verified
    assert (tmp_path / "data" / "trash").is_dir()
    assert len(list((kafka / "orders-by-id-0").glob("*.log"))) == 19


@pytest.mark.thorough
def test_only_the_records(reader: Reader, capsys, tmp_path: Path):
    reader.follow("only-the-records")
    assert {status for status, _ in reader.ended.values()} == {0}
    lines = [text.splitlines() for line, (_, text) in reader.ended.items() if "pylog cat" in line]
    assert len(lines[0]) == 3
    assert 0 < len(lines[1]) <= 10
    assert list((tmp_path / "data" / "orders").glob("part-*.parquet"))
    (found,) = (text for line, (_, text) in reader.ended.items() if "pylog find" in line)
    assert "orders-by-id-" in found
    ((_, code),) = [block for block in blocks("only-the-records") if block[0] == "python"]
    code = code.replace("/var/lib/kafka", reader.places["/var/lib/kafka"])
    exec(compile(code, "only-the-records", "exec"), {})  # noqa: S102  # the example is ours
    assert re.search(r"\d+ records, \d+ keys", capsys.readouterr().out)


@pytest.mark.thorough
def test_a_tier_that_may_not_be_whole(reader: Reader, tmp_path: Path):
    tier = unpack_tier("copied_killed", tmp_path / "tier")
    reader.places = {
        "s3://bucket/tier": str(tier.archive),
        "/var/lib/kafka": str(tier.folder / "local" / "b1"),
    }
    reader.follow("is-our-tier-whole")
    (listed, listing), (compared, records), (read, whole) = reader.ended.values()
    assert (listed, compared, read) == (0, 0, 1)  # the last one asks for warnings, too
    assert "TIER_SEGMENT_TWIN" in listing
    assert "TIER_UPLOAD_STOPPED" in records
    assert "TIER_UPLOAD_STOPPED" in whole


@pytest.mark.thorough
def test_the_nightly_on_s3(archivist: Reader, tmp_path: Path):
    archivist.follow("nightly-on-s3")
    assert {status for status, _ in archivist.ended.values()} == {0}
    texts = [text for _, text in archivist.ended.values()]
    # Of the topics that the page's file does not name, the ingest brought the configs along.
    assert "13 planned" in texts[2]
    assert "13 done" in texts[3]
    assert (tmp_path / "restored" / "orders-by-id-0").is_dir()


@pytest.mark.thorough
def test_what_the_page_says_of_costs_is_what_a_run_says():
    text = (FOLDER / "nightly-on-s3.md").read_text()
    row = re.compile(
        r"^\| (\d+) segments? of (\d+) MiB, (?:all|(\d+) MiB) dirty, into (\d+)"
        r" \| (\d+) \| (\d+) \| (\d+) \| (\d+) MiB \| (\d+) MiB \|$",
        re.MULTILINE,
    )
    rows = [[int(cell) if cell else None for cell in found] for found in row.findall(text)]
    assert len(rows) == 3
    for count, size, dirty, groups, *rest in rows:
        sizes = [size * MIB] * count
        cost = cost_of_round(sizes, sum(sizes) if dirty is None else dirty * MIB, groups)
        bounds = (cost.read_bytes // MIB, cost.written_bytes // MIB)
        assert [cost.gets, cost.puts, cost.heads, *bounds] == rest


@pytest.mark.thorough
def test_airflow(archivist: Reader, tmp_path: Path):
    mirror, archive = archivist.places["s3://backup/kafka"], archivist.places["s3://archive/kafka"]
    taken = archivist.pylog("ingest", mirror, archive, "--settle", "0s", "--engine", "local")
    assert taken.exit_code == 0
    archivist.follow("airflow")
    assert [status for status, _ in archivist.ended.values()] == [0]
    ((_, code),) = [block for block in blocks("airflow") if block[0] == "python"]
    tasks: list[dict[str, Any]] = []
    exec(  # noqa: S102  # the example is ours
        compile(code, "airflow", "exec"), {"PylogOperator": lambda **words: tasks.append(words)}
    )
    (task,) = tasks
    words = [archivist.places.get(word, word) for word in task["arguments"]]
    assert archivist.pylog(*words).exit_code == 0
    assert (tmp_path / "ledger" / "runs").is_dir()


@pytest.mark.thorough
@pytest.mark.spark
def test_databricks(spark, tmp_path: Path, capsys):
    root = unpack_broker(tmp_path / "kafka")
    ((_, code),) = blocks("databricks")
    code = code.replace("/Volumes/main/kafka/backup", str(root))
    exec(compile(code, "databricks", "exec"), {"spark": spark})  # noqa: S102  # the example is ours
    assert "3640 records" in capsys.readouterr().out
