"""Every operation on a partition, stopped at every single change: the crash matrix.

Operation x store x step: ``work`` has what is stopped, ``interruptions.py`` in which ways.
``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden log; without it few of each operation, the
same ones always. How many points were tried is a property of each test, in a report of pytest's.
"""

import shutil

import pytest

from tests.crash.all_cells import CELLS
from tests.crash.cells import Cell, WorkOfKafka, parameters
from tests.crash.interruptions import ALL, Interruption
from tests.oracle.kafka import Kafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 900)]


@pytest.mark.sampled(10)
@pytest.mark.item("CMP-37", "CKP-04", "DIR-03", "DIR-15", "FLT-02", "FLT-08", "FLT-14")
@pytest.mark.item("REC-06", "REC-25", "RET-10", "RET-11", "SEG-08", "SEG-09")
@pytest.mark.parametrize(("cell", "way"), parameters(CELLS))
def test_an_operation_may_stop_anywhere(cell: Cell, way: Interruption, tmp_path, record_property):
    work = cell.make(tmp_path, way)
    tried = 0
    with work.context():
        for where in way.strikes(work, stride=cell.stride_of(way), seeds=cell.seeds):
            work.check(where)
            tried += 1
        record_property("crash points", tried)
        if not tried:
            assert ALL
            pytest.skip("nothing is changed here, or nothing that a kill leaves by half")
        work.check_all()


@pytest.mark.sampled(2)
@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_jvm")
@pytest.mark.item("FLT-08", "REC-06", "RET-11")
@pytest.mark.parametrize(("cell", "way"), parameters(CELLS, for_kafka=True))
def test_kafka_opens_what_was_left(cell: Cell, way: Interruption, tmp_path, record_property):
    work = cell.make(tmp_path, way)
    assert isinstance(work, WorkOfKafka)
    kafka = Kafka(now_ms=work.now_ms)
    theirs = tmp_path / "kafkas" / work.directory.name
    tried = 0
    with work.context():
        for where in way.strikes(work, stride=cell.stride_of(way, for_kafka=True)):
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
    record_property("crash points", tried)
    # Of some logs few files have to be mended, and Kafka is not asked at each point.
    assert tried >= (1 if ALL else 2)
