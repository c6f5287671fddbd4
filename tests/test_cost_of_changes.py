"""What a change costs: each is made by a script on a copy of the tree, and tried.

The counts are the last column of the table in ``docs/CONTRIBUTING.md``. Files that
``docs/site/reference_pages.py`` writes anew are not among them. Where a change needs one
more file than that says, the house has become harder to extend: look why, before the number rises.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.program import run_to_end

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "CONTRIBUTING.md"
# What of the tree the changed program needs to run.
PARTS = ("pylog_spark", "storage_core", "conf", "docs/site")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change as a newcomer makes it.

    Attributes:
        replaced: For each file that changes, the texts that are replaced, each there once.
        added: New files.
        command: Arguments of ``pylog`` that show it; ``{log}`` is a broker's log directory.
        answer: What they print then, and do not print without the change.
        program: In the place of a command, a program that fails without the change.
    """

    replaced: Mapping[str, Mapping[str, str]]
    added: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    answer: str = ""
    program: str = ""

    @property
    def files(self) -> int:
        return len(self.replaced) + len(self.added)


OPTION = Change(
    replaced={
        "pylog_spark/options/declared.py": {
            "MAX_DELETE_RATIO: Final = Option[float](": """\
MAX_RETAINED: Final = Option[int | None](
    name="max_retained",
    flag="--max-retained",
    kind=BYTES,
    default=None,
    panel=GUARDS,
    metavar="AMOUNT",
    help="Retain no more partitions once so much was removed.",
    is_in_files=True,
)
MAX_DELETE_RATIO: Final = Option[float](""",
        },
        "pylog_spark/options/values.py": {
            "    MAX_DELETE_RATIO,\n": "    MAX_DELETE_RATIO,\n    MAX_RETAINED,\n",
            "    max_delete_ratio: float = MAX_DELETE_RATIO.field()\n": (
                "    max_delete_ratio: float = MAX_DELETE_RATIO.field()\n"
                "    max_retained_bytes: int | None = MAX_RETAINED.field()\n"
            ),
        },
        "pylog_spark/cli/commands.py": {
            "        declared.MAX_DELETE_RATIO,\n        declared.MAX_DURATION,\n": (
                "        declared.MAX_DELETE_RATIO,\n        declared.MAX_RETAINED,\n"
                "        declared.MAX_DURATION,\n"
            ),
        },
    },
    program="""
import sys
sys.path.insert(0, "docs/site")
from pylog_spark.cli.commands import COMMANDS
from pylog_spark.options.values import RunLimits
from reference_pages import text_of
(retain,) = (command for command in COMMANDS if command.name == "retain")
(option,) = (each for each in retain.options if each.name == "max_retained")
assert RunLimits(max_retained_bytes=option.read("1KiB")).max_retained_bytes == 1024
assert "\\nmax_retained: null\\n" in text_of("conf/defaults.yaml")
assert "--max-retained" in text_of("docs/cli.md")
print(option.flag)
""",
    answer="--max-retained",
)
FINDING = Change(
    replaced={
        "storage_core/maintenance/verification/findings.py": {
            '    FILE_UNKNOWN = "FILE_UNKNOWN"\n': (
                '    FILE_UNKNOWN = "FILE_UNKNOWN"\n    FILE_OF_EDITOR = "FILE_OF_EDITOR"\n'
            ),
        },
        "storage_core/maintenance/verification/finding_kinds.py": {
            "    Code.FILE_ANCIENT: FindingKind(\n": """\
    Code.FILE_OF_EDITOR: FindingKind(
        severity=Severity.INFO,
        meaning="A file is the copy that an editor keeps; it is left alone.",
        fix="nothing",
    ),
    Code.FILE_ANCIENT: FindingKind(
""",
        },
        "storage_core/maintenance/verification/files.py": {
            "        elif _is_ours_or_kafkas(name):": """\
        elif name.endswith("~"):
            findings.add(Code.FILE_OF_EDITOR, "the copy that an editor keeps", file=name)
        elif _is_ours_or_kafkas(name):""",
        },
    },
    command="verify {log} --engine local --output json",
    answer="FILE_OF_EDITOR",
)
COLUMN = Change(
    replaced={
        "pylog_spark/cli/transfer.py": {
            '        number_column("of them", "removable_segments", rank=5),\n': (
                '        number_column("of them", "removable_segments", rank=5),\n'
                '        number_column("after it", "segments_after", rank=6),\n'
            ),
        },
    },
    command="survey {log} --engine local --wide",
    answer="after it",
)
OPERATION = Change(
    added={
        "pylog_spark/operations/tally.py": '''\
"""Count the files of every partition."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place, open_engine
from pylog_spark.options import JobOptions
from pylog_spark.rows import Number, Text, column, schema_of
from pylog_spark.tasks.listing import list_partitions
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyRow:
    """The number of files of a partition."""

    directory: Text = column("path of the partition directory")
    files: Number = column("how many files it has")


TALLY = schema_of(TallyRow)


def tally(place: Place, roots: Sequence[str | Path], options: JobOptions) -> pa.Table:
    """Return a row of ``TallyRow`` for each partition."""
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    directories = [
        each["directory"]
        for root in resolve_roots(roots, role=options.role)
        for each in list_partitions(root.location, root.role.value, topics)
    ]

    def work(directory: str) -> Iterator[TallyRow]:
        yield TallyRow(directory=directory, files=len(open_store(directory).list_files()))

    with open_engine(place, tag="pylog-tally") as engine:
        return engine.collect(engine.spread(directories, work, TallyRow), TALLY, "pylog tally")
''',
        "pylog_spark/cli/tally.py": '''\
"""``pylog tally``: count the files of every partition."""

from typing import Any, Final

import pyarrow as pa

from pylog_spark.cli.runner import Call, Tasks, Work, prepare_roots
from pylog_spark.operations.tally import TALLY, tally
from pylog_spark.options.declared import ROOTS
from pylog_spark.report import number_column
from pylog_spark.view import Column, Table, TableKind, View, lines_of


def _operate(call: Call, place: Any) -> pa.Table:
    return tally(place, call.line[ROOTS], call.options)


def _view(call: Call, table: pa.Table) -> View:
    rows = table.to_pylist()
    kind = TableKind(
        columns=(
            Column(heading="directory", cell=lambda row: row["directory"], folds=True),
            number_column("files", "files", rank=1),
        )
    )
    return View(
        lines=lines_of("tally", rows),
        csv=("tally", TALLY.names),
        blocks=[Table(kind=kind, rows=rows)],
        status=0,
    )


TALLY_WORK: Final = Work(
    name="tally", prepare=prepare_roots, operate=_operate, view=_view, tasks=Tasks.HERE_IF_FEW
)
''',
    },
    replaced={
        "pylog_spark/cli/commands.py": {
            "_SURVEY: Final = Command(\n": """\
_TALLY: Final = Command(
    name="tally",
    panel=LOOK,
    work="pylog_spark.cli.tally:TALLY_WORK",
    options=(
        declared.ROOTS,
        declared.TOPICS,
        declared.EXCLUDE,
        GUESSED_ROLE,
        declared.ENGINE,
        declared.MASTER,
        declared.OUTPUT,
    ),
    help="Count the files of every partition.",
    example="Example: `pylog tally /var/lib/kafka`",
)
_SURVEY: Final = Command(
""",
            "_EXPLAIN, _SURVEY,": "_EXPLAIN, _TALLY, _SURVEY,",
        },
    },
    command="tally {log} --engine local --output json",
    answer='"files"',
)
STORE = Change(
    added={
        "storage_core/store/shelf_objects.py": '''\
"""Objects on a shelf: ``shelf://path``, a folder that a machine of its own writes."""

from pathlib import Path

from storage_core.store.local_objects import LocalObjectStore


class ShelfObjectStore(LocalObjectStore):
    """The files of a shelf."""

    def __init__(self, url: str) -> None:
        super().__init__(Path(url.removeprefix("shelf://")))
        self._shelf = url.rstrip("/")

    @property
    def url(self) -> str:
        """Where the keys begin."""
        return self._shelf
''',
    },
    replaced={
        "storage_core/store/open_objects.py": {
            "from storage_core.store.object_store import ObjectStore\n": (
                "from storage_core.store.object_store import ObjectStore\n"
                "from storage_core.store.shelf_objects import ShelfObjectStore\n"
            ),
            '= {"s3": _open_s3,': '= {"shelf": ShelfObjectStore, "s3": _open_s3,',
        },
    },
    command="inspect shelf://{log} --output json",
    answer="payments.txn",
)
KIND_OF_ROOT = Change(
    added={
        "storage_core/roots/crate.py": '''\
"""A crate: partitions that were packed into the folder ``packed`` of a directory; only read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.errors import GuardRefusedError
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.root import HeldRoot

CRATE_FILE: Final = "crate.json"


@dataclass(frozen=True, slots=True)
class CrateRoot(BrokerRoot):
    """The packed partitions of a crate."""

    @classmethod
    def of(cls, path: Path) -> "CrateRoot":
        """Return the root that a crate is."""
        return cls(path / "packed")

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> HeldRoot:
        """Refuse: a crate is only read.

        Raises:
            GuardRefusedError: Always.
        """
        del run_id, mark_clean, is_alone, trash
        raise GuardRefusedError("ROLE_IS_READ_ONLY", f"{self.path} is packed, and only read")
''',
    },
    replaced={
        "storage_core/catalog/roles.py": {
            '    MANAGED = "managed"\n': '    MANAGED = "managed"\n    CRATE = "crate"\n',
            "_FACTS: Final = {\n": (
                '_FACTS: Final = {\n    Role.CRATE: RoleFacts(phrase="a crate", is_synced=True),\n'
            ),
            "        if (directory / META_PROPERTIES_FILE).is_file():\n": (
                '        if (directory / "crate.json").is_file():\n'
                "            return Role.CRATE\n"
                "        if (directory / META_PROPERTIES_FILE).is_file():\n"
            ),
        },
        "storage_core/roots/open_root.py": {
            "from storage_core.roots.managed import ManagedRoot\n": (
                "from storage_core.roots.crate import CrateRoot\n"
                "from storage_core.roots.managed import ManagedRoot\n"
            ),
            "    path = local_path(place)\n": (
                "    path = local_path(place)\n"
                "    if path is not None and (role or guess_role(place)) is Role.CRATE:\n"
                "        return CrateRoot.of(path)\n"
            ),
        },
    },
    command="inspect {crate} --output json",
    answer="payments.txn",
)
CODEC = Change(
    added={
        "storage_core/records/codecs/deflate.py": '''\
"""deflate: the records as one zlib stream."""

import zlib

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs.base import limit_error


def decompress(data: bytes | bytearray | memoryview, *, limit_bytes: int) -> bytes:
    """Expand a stream; see ``RecordCodec``."""
    machine = zlib.decompressobj()
    try:
        expanded = machine.decompress(data, limit_bytes)
    except zlib.error as error:
        raise DecompressionError("deflate", str(error)) from error
    if machine.unconsumed_tail:
        raise limit_error(Codec.DEFLATE, limit_bytes)
    return expanded


def compress(data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress records; see ``RecordCodec``."""
    return zlib.compress(data, -1 if level is None else level)
''',
    },
    replaced={
        "storage_core/formats/batch_v2.py": {"    ZSTD = 4\n": "    ZSTD = 4\n    DEFLATE = 5\n"},
        "storage_core/config/log_config.py": {
            '    GZIP = "gzip"\n': '    GZIP = "gzip"\n    DEFLATE = "deflate"\n'
        },
        "storage_core/records/codecs/registry.py": {
            "codecs import gzip,": "codecs import deflate, gzip,",
            "    Codec.GZIP: gzip,\n": "    Codec.GZIP: gzip,\n    Codec.DEFLATE: deflate,\n",
            "    BrokerCompressionType.GZIP: Codec.GZIP,\n": (
                "    BrokerCompressionType.GZIP: Codec.GZIP,\n"
                "    BrokerCompressionType.DEFLATE: Codec.DEFLATE,\n"
            ),
        },
    },
    program="""
from storage_core.config import BrokerCompressionType
from storage_core.records.codecs import CODEC_OF, compress, decompress
codec = CODEC_OF[BrokerCompressionType("deflate")]
packed = compress(codec, b"record" * 100)
assert len(packed) < 100
assert decompress(codec, packed, limit_bytes=600) == b"record" * 100
print(codec.name)
""",
    answer="DEFLATE",
)
CHANGES = {
    "an option": OPTION,
    "a finding": FINDING,
    "a column of a report": COLUMN,
    "an operation": OPERATION,
    "a store": STORE,
    "a kind of root": KIND_OF_ROOT,
    "a codec": CODEC,
}


def link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what the program is made of; its files are links to those of the tree.

    They are copies where temporary files are on another disk.
    """
    copy = tmp_path / "tree"
    is_other_disk = tmp_path.stat().st_dev != REPOSITORY.stat().st_dev
    for part in PARTS:
        shutil.copytree(
            REPOSITORY / part,
            copy / part,
            copy_function=shutil.copy2 if is_other_disk else link,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return copy


@pytest.fixture
def places(tmp_path: Path) -> Mapping[str, Path]:
    """Return a broker's log directory with the copy of an editor in it, and a packed one."""
    places = {"log": tmp_path / "log", "crate": tmp_path / "crate"}
    for folder in (places["log"], places["crate"] / "packed"):
        folder.mkdir(parents=True)
        with tarfile.open(REPOSITORY / "tests/golden/broker-dir/before.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    (places["crate"] / "packed" / "meta.properties").unlink()
    (places["crate"] / "crate.json").write_text("{}")
    partition = next(path for path in places["log"].iterdir() if path.is_dir())
    (partition / "notes~").write_text("")
    return places


def write(file: Path, text: str) -> None:
    """Write a file of the copy, not the one of the tree that it is linked to."""
    file.unlink(missing_ok=True)
    file.write_text(text)


def run(change: Change, tree: Path, places: Mapping[str, Path]) -> subprocess.CompletedProcess[str]:
    if change.program:
        words = ["-c", change.program]
    else:
        words = ["-m", "pylog_spark", *change.command.format_map(places).split()]
    return run_to_end([sys.executable, *words], cwd=tree)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_takes_as_many_files_as_the_page_says(name, tree, places):
    change = CHANGES[name]
    assert change.answer not in run(change, tree, places).stdout
    for path, texts in change.replaced.items():
        text = (tree / path).read_text()
        for old, new in texts.items():
            assert text.count(old) == 1, f"{path}: {old}"
            text = text.replace(old, new)
        write(tree / path, text)
    for path, text in change.added.items():
        write(tree / path, text)
    done = run(change, tree, places)
    assert change.answer in done.stdout, done.stdout + done.stderr
    row = re.search(rf"^\| {name} \|.*\| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None, f"{PAGE.name} has no row of {name}"
    assert change.files == int(row[1])
