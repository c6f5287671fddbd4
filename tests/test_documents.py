"""What the documents promise as documents: links that lead somewhere, options that exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from pylog_spark.cli.program import app

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LISTING = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that a host of repositories makes of a document's headings."""
    headings = HEADING.findall(LISTING.sub("", document.read_text()))
    plain = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def options_of(command: str) -> set[str]:
    found = get_command(app).commands[command]
    commands = [found, *getattr(found, "commands", {}).values()]
    return {name for each in commands for parameter in each.params for name in parameter.opts}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(document: Path):
    for link in LINK.findall(LISTING.sub("", document.read_text())):
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (document.parent / place).resolve() if place else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_every_command_is_in_the_table_of_commands():
    table = (ROOT / "docs" / "cli.md").read_text().partition("## Exit status")[0]
    for command in get_command(app).commands:
        assert f"`pylog {command}" in table, command


def test_every_option_of_a_table_exists_in_a_command_of_its_section():
    sections = re.split(r"^## ", (ROOT / "docs" / "cli.md").read_text(), flags=re.MULTILINE)
    rows = 0
    for section in sections:
        named = re.findall(r"[a-z]+", section.partition("\n")[0])
        commands = [name for name in named if name in get_command(app).commands]
        known = {option for command in commands for option in options_of(command)}
        for first_cell in re.findall(r"^\| (`--[^|]*(?:\\\|[^|]*)*)\|", section, re.MULTILINE):
            rows += 1
            for option in OPTION.findall(first_cell):
                assert option in known, (section.partition("\n")[0], option)
    assert rows > 30
