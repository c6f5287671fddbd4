"""Every operation on a partition, stopped at every single change: the crash matrix.

Operation x store x step: ``work`` has what is stopped, ``interruptions.py`` in which ways.
``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden log; without it few of each operation, the
same ones always.
"""

import shutil

import pytest

from storage_core.store.local import LocalStore
from tests.crash.cells import Cell, WorkOfKafka, parameters
from tests.crash.interruptions import ALL, Interruption
from tests.crash.work import CELLS
from tests.kit.faulty_store import FaultyStore
from tests.oracle.kafka import Kafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 900)]


@pytest.mark.item("CMP-37", "FLT-08", "FLT-14", "REC-06", "REC-25", "RET-10", "RET-11")
@pytest.mark.item("SEG-08", "SEG-09")
@pytest.mark.parametrize(("cell", "way"), parameters(CELLS))
def test_an_operation_may_stop_anywhere(cell: Cell, way: Interruption, tmp_path):
    work = cell.make(tmp_path, way)
    with work.surroundings():
        work.reset()
        undisturbed = FaultyStore(LocalStore(work.directory))
        work.run(undisturbed)
        stride = cell.stride_of(way)
        points = [change for change in undisturbed.changes[::stride] if way.can_strike(change)]
        if not points:
            assert ALL
            pytest.skip("nothing is changed here, or nothing that a kill leaves by half")
        tried = 0
        for where in way.strikes(
            work.run, work.directory, reset=work.reset, root=work.disk, stride=stride
        ):
            work.check(where)
            tried += 1
        assert tried > 1 if way.is_of_power else tried == len(points)
        work.check_all()


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08", "REC-06", "RET-11")
@pytest.mark.parametrize(("cell", "way"), parameters(CELLS, for_kafka=True))
def test_kafka_opens_what_was_left(cell: Cell, way: Interruption, tmp_path):
    work = cell.make(tmp_path, way)
    assert isinstance(work, WorkOfKafka)
    kafka = Kafka(now_ms=work.now_ms)
    theirs = tmp_path / "kafkas" / work.directory.name
    tried = 0
    with work.surroundings():
        for where in way.strikes(
            work.run,
            work.directory,
            reset=work.reset,
            root=work.disk,
            stride=cell.stride_of(way, for_kafka=True),
        ):
            work.tidy()
            for clean_shutdown in work.shutdowns:
                shutil.rmtree(theirs, ignore_errors=True)
                shutil.copytree(work.directory, theirs)
                with kafka.open_partition(
                    theirs,
                    config=work.overrides,
                    clean_shutdown=clean_shutdown,
                    **work.checkpoints,
                ) as partition:
                    answer = partition.answer()
                work.check_kafkas(theirs, answer, where, clean_shutdown=clean_shutdown)
            work.check_beside(theirs, where)
            tried += 1
    assert tried > 1
