"""Files that the disk takes while they grow: what the system is asked for; nothing is lost."""

import os

from storage_core.store.syncing import WriteBehind

MIB = 1 << 20


def test_each_piece_is_asked_for_once_and_what_is_small_never(tmp_path, monkeypatch):
    asked: list[tuple[int, int]] = []

    def advise(_descriptor: int, start: int, size: int, _advice: int) -> None:
        asked.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    with (tmp_path / "log").open("wb") as file:
        behind = WriteBehind(file.fileno(), MIB)
        for size_mib in (2, 3, 4, 9, 10):
            behind.reach(size_mib * MIB)
    assert asked == [(MIB, 2 * MIB), (3 * MIB, 6 * MIB)]


def test_what_is_written_stays_readable(tmp_path):
    path = tmp_path / "log"
    pieces = [bytes([number]) * (3 * MIB) for number in range(4)]
    with path.open("wb") as file:
        behind = WriteBehind(file.fileno())
        for number, piece in enumerate(pieces):
            file.write(piece)
            behind.reach((number + 1) * 3 * MIB)
    assert path.read_bytes() == b"".join(pieces)
