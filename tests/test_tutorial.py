"""``docs/tutorial.md``: its commands run one after the other, as they stand."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.kit.program import run_to_end

REPOSITORY = Path(__file__).resolve().parents[1]
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
# What is there already where this test runs.
INSTALL = {
    "python3 -m venv .venv",
    ".venv/bin/pip install --quiet .",
    ". .venv/bin/activate",
    ".venv/bin/pip install --quiet '.[avro,protobuf,sql]' pandas",
}
# What `pylog sql` says beside its answer.
READ = "pylog: read "
# By a piece of a block: what its reader sees.
SEEN = {
    "pylog inspect": "orders-by-id-1",
    "pylog explain": "due: ",
    "pylog dump": "order-2026-",
    "pylog verify": "harmless  INDEX_PREALLOCATED",
    "pylog run ": "13 done, 2 skipped",
    "pylog runs": "possible",
    "pylog doctor": "pylog recover",
    "pylog recover": "clickstream-0",
    '"orders-by-id", columns': "624 keys",
    "pylog sql": "Lisbon",
    "value.state": "PLACED",
}


@pytest.mark.thorough
def test_the_tutorial_runs_from_its_first_line_to_its_last(tmp_path: Path):
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    left_out, seen = set(), {}
    for language, text in BLOCKS:
        lines = [line for line in text.splitlines() if line not in INSTALL]
        left_out |= set(text.splitlines()) & INSTALL
        program = [sys.executable, "-"] if language == "python" else ["bash", "-e"]
        ended = run_to_end(program, input="\n".join(lines), cwd=tmp_path, env=environment)
        assert ended.returncode == 0, (text, ended.stdout, ended.stderr)
        told = [line for line in ended.stderr.splitlines() if not line.startswith(READ)]
        assert told == [], text
        for piece, words in SEEN.items():
            if piece in text:
                seen[piece] = words in ended.stdout
                assert seen[piece], ended.stdout
    assert left_out == INSTALL
    assert seen.keys() == SEEN.keys()
