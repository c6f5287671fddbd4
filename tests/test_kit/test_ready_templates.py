import os
import pickle
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest

from pylog_spark.engines import local_engine as local_pool
from tests.kit.ready_templates import ReadyTemplates


def state_of_process(_given, _task):
    """What a worker has of its driver, and the process that leads its group."""
    return (
        (str(Path.cwd()), os.environ.get("OF_A_DRIVER"), sys.path),
        (os.getpgid(0), str(Path("/proc/self/fd/0").readlink())),
    )


@pytest.fixture
def templates():
    made = ReadyTemplates()
    yield made
    made.close()


@pytest.mark.thorough
def test_workers_have_what_those_of_a_template_of_the_drivers_own_have(
    templates, tmp_path, monkeypatch
):
    stage = tmp_path / "stage"
    stage.write_bytes(cloudpickle.dumps(SimpleNamespace(run=state_of_process)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr(local_pool, "start_template", templates.start_template)
    leaders = set()
    for value in ("first", "second"):
        monkeypatch.setenv("OF_A_DRIVER", value)
        with closing(local_pool.ProcessLanes(1)) as lanes, lanes.fork() as worker:
            worker.send_bytes(pickle.dumps((str(stage), cloudpickle.dumps(None), 0)))
            made, failure, _requests = pickle.loads(worker.recv_bytes())
        assert failure is None
        state, (leader, standard_input) = made
        assert state == (str(tmp_path), value, sys.path)
        assert standard_input.startswith("pipe:")
        assert leader != os.getpgid(0)
        # Killed with its group when the lanes were closed.
        assert not Path(f"/proc/{leader}").exists()
        leaders.add(leader)
    assert len(leaders) == 2
