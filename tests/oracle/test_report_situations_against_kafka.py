"""A real broker on situations of public reports: what the doctor's word is compared with."""

import shutil
from pathlib import Path

import pytest

from tests.kit.report_situations import unpack
from tests.oracle.started_broker import Starter

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600, method="thread")]


def test_the_empty_file_that_is_named_keeps_the_offsets_in_kafka(tmp_path: Path):
    [root] = unpack("drained_nofile", tmp_path / "lost")
    kept = Path(shutil.copytree(root, tmp_path / "kept" / "d1"))
    (kept / "drained-0" / "00000000000000000300.log").touch()
    with Starter() as starter:
        anew, goes_on = starter.start([root]), starter.start([kept])
    assert (anew.is_up, goes_on.is_up) == (True, True), (anew.error, goes_on.error)
    assert anew.logs is not None
    assert goes_on.logs is not None
    ends = [
        (log.log_start_offset, log.log_end_offset)
        for log in (anew.logs["drained-0"], goes_on.logs["drained-0"])
    ]
    assert ends == [(0, 0), (300, 300)]
