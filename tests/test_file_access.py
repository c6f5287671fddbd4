"""Files of a root are opened through one door: nobody goes around it without being named here.

``storage_core.local_files`` says what the door is for.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
DOOR = "storage_core/local_files.py"
METHODS = frozenset(
    {"read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob", "rglob", "touch"}
)
FUNCTIONS = {
    "os": frozenset({"chmod", "chown", "listdir", "open", "remove", "scandir", "truncate", "walk"}),
    "np": frozenset({"fromfile", "memmap"}),
    "shutil": frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rmtree"}),
}
MODE = re.compile(r"[rwax]b?\+?")
# Only a text with one of these is parsed.
NAMES = sorted({"open", *METHODS}.union(*FUNCTIONS.values()))
CALLED = re.compile(rf"\b({'|'.join(NAMES)})\s*\(")
ALLOWED = {
    "pylog_spark/record_text.py": "a file that the user names",
    "pylog_spark/registered_schemas.py": "a folder that the user names",
    "pylog_spark/operations/doctor/driver.py": "scandir: asks of each name whether it may be read",
    "pylog_spark/cli/start.py": "os.open: /dev/null",
    "pylog_spark/cli/program.py": "os.open: /dev/null",
    "pylog_spark/cli/warmup.py": "glob: names in the user's cache; a folder of this process's own",
    "pylog_spark/engines/local_engine.py": "a temporary folder of this process's own",
    "pylog_spark/engines/local_worker.py": "the same folder",
    "pylog_spark/cli/sql_file.py": "a file that the user names, and ours beside it",
    "pylog_spark/cli/sql_prompt.py": "os.open: the user's own history of queries",
    "pylog_spark/ledger/tables.py": "glob: what the tables of a ledger are made of",
    "pylog_spark/operations/export_out.py": "a folder that the user names, and ours beside it",
    "pylog_spark/operations/export_task.py": "the same folder; a temporary one of its own",
    "pylog_spark/source/options.py": "glob: a pattern that the user writes",
    "pylog_spark/options/load.py": "a file that the user names",
    "pylog_spark/options/option.py": "a file that the user names",
    "pylog_spark/java.py": "the user's cache; files of Java and Spark; certificates of the machine",
    "pylog_spark/cluster/audit/driver.py": "a file, and a new folder, that the user names",
    "pylog_spark/cluster/copies.py": "a file that the user names",
    "pylog_spark/cluster/attach.py": "a file that the user names",
    "pylog_spark/cluster/transplant.py": "a file that the user names",
    "pylog_spark/operations/materialize.py": "sizes of what this program has written",
    "pylog_spark/run/plan_file.py": "a file that the user names",
    "storage_core/roots/guards.py": "names in the root itself",
    "pylog_spark/report_page.py": "a file that the user names",
    "pylog_spark/session.py": "a file that the user names",
    "storage_core/checkpoint/lock.py": "the kernel's boot id, /proc",
    "storage_core/commit/claim.py": "os.open without links; the kernel's boot id; touch",
    "storage_core/commit/purge.py": "iterdir: links are left out",
    "storage_core/commit/scratch.py": "rmtree: follows no link",
    "storage_core/commit/trash.py": "os.open of a directory, to lock it; os.walk: follows no link",
    "storage_core/interruption.py": "temporary folders of this process's own",
    "storage_core/kernels/_code_files.py": "the user's cache, a folder that others cannot write",
    "storage_core/maintenance/compaction/partition.py": "glob: its scratch files, to unlink them",
    "storage_core/maintenance/compaction/rewrite.py": "/dev/null",
    "storage_core/maintenance/materialize.py": "os.open of a directory, to lock it",
    "storage_core/maintenance/verification/one_broker.py": "glob: names in the root itself",
    "storage_core/roots/own_catalog.py": "a temporary folder of this process's own",
    "storage_core/cluster/metadata_copies.py": "rmtree: follows no link",
    "storage_core/cluster/transplant/replica.py": "rmtree: follows no link",
    "storage_core/store/copying.py": "a temporary file of this process's own",
    "storage_core/store/filesystems.py": "the mount table",
    "storage_core/store/local.py": "os.open of a directory, to sync it",
    "storage_core/store/syncing.py": "what the kernel has not written yet, /proc",
    "storage_core/store/tier_chunks.py": "a file that the user names",
    "storage_core/values/registry.py": "a file or a folder that the user names",
    "storage_core/writing/publication.py": "rmtree: follows no link",
}


def calls_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                yield "open"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in FUNCTIONS.get(
                module, ()
            ):
                yield f"{module}.{name}"
            case ast.Attribute(attr="open") if _has_mode(node):
                yield ".open"
            case ast.Attribute(attr=name) if name in METHODS:
                yield f".{name}"


def _has_mode(call: ast.Call) -> bool:
    """Whether a method called ``open`` is that of a path: its mode comes first."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and bool(MODE.fullmatch(str(first.value)))


def sources() -> list[Path]:
    return [
        path
        for package in ("storage_core", "pylog_spark")
        for path in (HOME / package).rglob("*.py")
    ]


def test_files_are_opened_through_the_door_or_by_those_who_say_why():
    around = {}
    for path in sources():
        name = path.relative_to(HOME).as_posix()
        text = path.read_text()
        calls = sorted(set(calls_of(ast.parse(text)))) if CALLED.search(text) else []
        if calls and name != DOOR:
            around[name] = calls
    assert {name: calls for name, calls in around.items() if name not in ALLOWED} == {}


@pytest.mark.parametrize(
    "line",
    [
        "open('x')", "path.open('rb')", "os.open(path, 0)", "os.scandir(p)", "path.read_bytes()",
        "np.memmap(path)", "p.iterdir()", "shutil.copyfile(a, b)", "(p / 'x').glob('*')",
    ],
)  # fmt: skip
def test_what_goes_around_the_door_is_noticed(line):
    assert list(calls_of(ast.parse(line)))


def test_what_goes_through_it_is_not():
    assert not list(calls_of(ast.parse("store.open('t-0')\nos.fdopen(open_in(folder, 'x'), 'rb')")))
