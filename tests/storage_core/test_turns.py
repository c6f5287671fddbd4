"""One thread computes, the others wait for disks."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage_core.store.syncing import sync
from storage_core.threads import in_turns, waiting

THREADS = 8
SECONDS = 20


def do_all(work, items=range(THREADS)):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(in_turns(work), items))


def test_one_computes_at_a_time_and_all_wait_at_once():
    computing, most = 0, 0
    everybody = threading.Barrier(THREADS, timeout=SECONDS)

    def work(number: int) -> int:
        nonlocal computing, most
        computing += 1
        most = max(most, computing)
        computing -= 1
        with waiting():
            everybody.wait()
        return number * 2

    assert do_all(work) == [number * 2 for number in range(THREADS)]
    assert most == 1


def test_syncs_are_waited_for_together(tmp_path: Path, monkeypatch):
    everybody = threading.Barrier(THREADS, timeout=SECONDS)
    monkeypatch.setattr(os, "fsync", lambda _: everybody.wait())
    with (tmp_path / "file").open("wb") as file:
        do_all(lambda _: sync(file.fileno()))


def test_who_waits_has_its_turn_again_also_after_an_error():
    def work(number: int) -> None:
        with pytest.raises(KeyError), waiting():
            raise KeyError
        with waiting():
            pass
        if number % 2:
            raise ValueError(number)

    turns = in_turns(work)
    for number in range(4):
        if number % 2:
            with pytest.raises(ValueError, match=str(number)):
                turns(number)
        else:
            turns(number)


def test_without_turns_nobody_is_waited_for(tmp_path: Path):
    with waiting():
        pass
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
