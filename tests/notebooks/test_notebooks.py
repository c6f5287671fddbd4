"""Notebooks run from their first cell to their last, without a person or a browser.

What they show is written to ``build/notebooks``, to be looked at and to be imported elsewhere.
"""

import re
from pathlib import Path

import pytest

from tests.kit.golden_broker import unpack_broker

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.py"))
SHOWN = REPOSITORY / "build" / "notebooks"
# Where a session is there already, the notebook does not make one.
HOSTED = "import sys; sys.path.insert(0, '..'); from tests.notebooks.hosted_session import *"


def test_each_notebook_is_named_in_its_document():
    text = (REPOSITORY / "docs" / "notebooks.md").read_text()
    named = re.findall(r"\(\.\./notebooks/(\w+\.py)\)", text)
    assert named == [path.name for path in NOTEBOOKS]
    assert len(NOTEBOOKS) == 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_text_and_has_no_outputs(path):
    text = path.read_text()
    assert text.startswith("# ---\n# jupyter:\n")
    # Without the extension Jupytext takes the file for another format: marks of cells become text.
    assert (
        "#     text_representation:\n#       extension: .py\n#       format_name: percent\n" in text
    )
    assert "# %% [markdown]\n# # " in text
    compile(text, path.name, "exec")


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_as_the_cells_that_its_marks_make(path):
    import jupytext  # noqa: PLC0415  # make notebooks alone installs these

    marks = re.findall(r"^# %%(?: \[(markdown)\])?$", path.read_text(), re.MULTILINE)
    cells = jupytext.read(path).cells
    assert [cell.cell_type for cell in cells] == [mark or "code" for mark in marks]
    assert not [cell.source for cell in cells if "%%" in cell.source]


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end_and_shows_a_picture(path, tmp_path, monkeypatch):
    import jupytext  # noqa: PLC0415  # make notebooks alone installs these
    import nbformat  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415

    notebook = jupytext.read(path)
    before = 0
    if path.stem == "05_on_databricks":
        monkeypatch.setenv("PYLOG_WIDGET_ROOT", str(unpack_broker(tmp_path / "kafka")))
        monkeypatch.setenv("PYLOG_WIDGET_LEDGER", str(tmp_path / "ledger"))
        notebook.cells.insert(0, nbformat.v4.new_code_cell(HOSTED))
        before = 1
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": path.parent}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    del notebook.cells[:before]
    SHOWN.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, SHOWN / f"{path.stem}.ipynb")
