"""What the documents promise as documents: links that lead somewhere, options that exist."""

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pylog_spark.cli.program import app

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))
from reference_pages import GENERATED, text_of  # noqa: E402  # it is in no package

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LISTING = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Tables that the benches write.
MEASURED = re.compile(
    r"^<!-- \w+: written by make bench -->.*?^<!-- end of figures -->", re.MULTILINE | re.DOTALL
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
# Of which of a section's commands a row of its table is: "of `undo` and `purge`".
OF_COMMANDS = re.compile(r"\bof ((?:`[a-z]+`(?:, | and )?)+)")


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that a host of repositories makes of a document's headings."""
    headings = HEADING.findall(LISTING.sub("", document.read_text()))
    plain = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def named_options() -> dict[str, set[str]]:
    """Return what the help of each command lists, by its name: ``retain``, ``partition retain``."""
    found = {}
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", {})
        named = {f"{name} {other}": each for other, each in inner.items()} or {name: command}
        for path, each in named.items():
            shown = (option for option in each.params if not getattr(option, "hidden", False))
            texts = (text for option in shown for text in option.opts)
            found[path] = {text for text in texts if text.startswith("--")}
    return found


def sections_of(page: str) -> dict[str, tuple[str, ...]]:
    """Return the commands in the heading of each section of a page, by its whole text."""
    groups = [path.split()[0] for path in OPTIONS if " " in path]
    sections = {}
    text = (ROOT / "docs" / page).read_text()
    for section in re.split(r"^#+ ", LISTING.sub("", text), flags=re.MULTILINE)[1:]:
        words = re.findall(r"[a-z]+", section.partition("\n")[0])
        group = [word for word in words if word in groups]
        paths = [" ".join([*group, word]) for word in words]
        sections[section] = tuple(path for path in paths if path in OPTIONS)
    return sections


OPTIONS = named_options()
REFERENCE = (ROOT / "docs" / "cli.md").read_text()
# The page that describes each command, by the table of commands.
PAGES = dict(
    re.findall(r"^\| \[`pylog ([a-z ]+)`\].* \| \[.*\]\((.+\.md)\) \|$", REFERENCE, re.MULTILINE)
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(document: Path):
    for link in LINK.findall(LISTING.sub("", document.read_text())):
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (document.parent / place).resolve() if place else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_what_the_program_declares(name: str):
    assert (ROOT / name).read_text() == text_of(name), (
        "python docs/site/reference_pages.py writes it anew"
    )


def test_every_command_is_in_the_table_of_commands_with_a_page_that_describes_it():
    assert list(PAGES) == list(OPTIONS)
    for command, page in PAGES.items():
        assert f"pylog {command}" in (ROOT / "docs" / page).read_text(), command


@pytest.mark.parametrize("page", sorted({"cli.md", *PAGES.values()}))
def test_every_option_of_a_table_exists_in_each_command_that_the_row_is_about(page: str):
    described = [command for command, place in PAGES.items() if place == page]
    for section, headed in sections_of(page).items():
        for row in re.findall(r"^\| `-.*$", section, re.MULTILINE):
            first_cell, second_cell = re.split(r"(?<!\\)\|", row)[1:3]
            named = " ".join(OF_COMMANDS.findall(second_cell))
            about = [command for command in headed if f"`{command}`" in named] or headed
            for option in OPTION.findall(first_cell):
                for command in about:
                    assert option in OPTIONS[command], (command, row)
                # Where no heading names one, it is one of the page's, or of many commands.
                candidates = OPTIONS if page in ("cli.md", "config.md") else described
                assert about or any(option in OPTIONS[command] for command in candidates), row


@pytest.mark.parametrize("page", ["architecture", "house-engine", "house-upkeep", "house-cluster"])
def test_a_page_about_the_code_names_only_files_that_are_there(page: str):
    text = LISTING.sub("", (ROOT / "docs" / f"{page}.md").read_text())
    spans = [span.partition(":")[0] for span in re.findall(r"`([^`]+)`", text)]
    paths = [span for span in spans if re.fullmatch(r"[\w./-]+(/[\w.-]+|\.py)", span)]
    places = [ROOT, ROOT / "storage_core", ROOT / "pylog_spark"]
    # What each operation has: one of them has it.
    places.append(ROOT / "pylog_spark" / "operations" / "retain")
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []
    assert len(paths) > 5


def test_the_tables_of_options_are_looked_at():
    rows = [
        row
        for page in {"cli.md", *PAGES.values()}
        for row in re.findall(r"^\| `-.*$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    ]
    assert len(rows) > 200


def test_every_option_of_a_command_is_in_its_section():
    sections = {
        section: commands
        for section, commands in sections_of("cli.md").items()
        if section.startswith("pylog ")
    }
    for command, options in OPTIONS.items():
        (section,) = [text for text, commands in sections.items() if command in commands]
        assert options - set(OPTION.findall(section)) == set(), command
    assert len(OPTIONS) > 20


def test_no_page_that_people_write_is_too_long_to_be_read_at_once():
    words = {
        page.name: len(MEASURED.sub("", page.read_text()).split())
        for page in DOCUMENTS
        if str(page.relative_to(ROOT)) not in GENERATED
    }
    assert {name: count for name, count in words.items() if count > 2500} == {}
