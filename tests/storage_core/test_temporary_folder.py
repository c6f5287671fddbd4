"""A folder for temporary files, and a signal while it is made or removed."""

import tempfile

import pytest

from storage_core import interruption
from storage_core.temporary_folder import temporary_folder


def test_it_is_gone_after_the_block_and_after_an_error(tmp_path):
    with temporary_folder("ours-", tmp_path) as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path
        assert folder.name.startswith("ours-")
    with pytest.raises(ZeroDivisionError), temporary_folder("ours-", tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_no_signal_ends_the_process_between_the_making_and_the_note_of_it(tmp_path, monkeypatch):
    blocks = []

    class Slow(tempfile.TemporaryDirectory):
        def __init__(self, **arguments):
            blocks.append(interruption._watch.blocks)
            super().__init__(**arguments)

    before = interruption._watch.blocks
    monkeypatch.setattr(tempfile, "TemporaryDirectory", Slow)
    with temporary_folder("ours-", tmp_path) as folder:
        assert str(folder) in interruption._watch.scratch
        assert interruption._watch.blocks == before
    assert blocks == [before + 1]
    assert not interruption._watch.scratch


def test_a_signal_during_the_removal_leaves_nothing(tmp_path, monkeypatch):
    noted = []

    class Slow(tempfile.TemporaryDirectory):
        def cleanup(self):
            noted.append(self.name in interruption._watch.scratch)
            super().cleanup()

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Slow)
    with temporary_folder("ours-", tmp_path):
        pass
    assert noted == [True]
