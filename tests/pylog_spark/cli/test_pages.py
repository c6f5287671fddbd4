"""``--report``: the page of each command, read as a file and opened in a browser.

The browser is a headless Chromium; where there is none, those tests are skipped. What the documents
show of a page is written anew by ``PYLOG_KEEP_PICTURES=1 pytest`` with this file.
"""

import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

import pytest

from pylog_spark import cli
from pylog_spark.cli.runner import show
from pylog_spark.report_page import write_page
from storage_core.errors import StorageError
from tests.kit.chromium import Chromium, find_chromium
from tests.kit.compare import read_tree
from tests.kit.golden_broker import broker_origin, unpack_broker
from tests.kit.golden_data import Golden
from tests.pylog_spark.test_report_page import Tags

PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
IS_KEPT_ANEW: Final = "PYLOG_KEEP_PICTURES" in os.environ
HOUR_MS: Final = 3_600_000
CLOSED_MS: Final = int(broker_origin()["clock_ms"]) + HOUR_MS
UNCLEAN: Final = Golden("broker-dir-unclean")
UNCLEAN_MS: Final = int(UNCLEAN.case["clock_ms"]) + HOUR_MS
CLOSED: Final = f"--role broker --now-ms {CLOSED_MS} --engine local"
LATER: Final = f"--role broker --now-ms {CLOSED_MS + 30 * 24 * HOUR_MS} --engine local"

COMMANDS: Final = {
    "inspect": "inspect {}/log {}/unclean",
    "survey": f"survey {{}}/log {{}}/copy --now-ms {CLOSED_MS} --engine local",
    "verify": f"verify {{}}/torn --deep --now-ms {UNCLEAN_MS} --engine local",
    "doctor": f"doctor {{}}/torn --now-ms {UNCLEAN_MS} --engine local",
    "run-dry": f"run {{}}/log {LATER} --dry-run",
    "compact-dry": f"compact {{}}/applied {CLOSED} --dry-run --plan-out {{}}/plan.json",
    "apply": "apply {}/plan.json --engine local",
    "retain": f"retain {{}}/retained {LATER} --ledger {{}}/ledger",
    "run": f"run {{}}/done {LATER} --ledger {{}}/ledger --trash {{}}/trash",
    "recover": (
        f"recover {{}}/recovered --role broker --now-ms {UNCLEAN_MS} --engine local "
        "--allow-truncate"
    ),
}
# The headings of each that have a picture below them.
DRAWN: Final = {
    "inspect": {"Segments of the biggest partitions", "Dirty ratios"},
    "survey": {"What is due", "Dirty ratios"},
    "verify": {"Findings by kind"},
    "doctor": {"Findings by kind"},
    "run-dry": {
        *("Bytes before and after", "Segments of the biggest partitions"),
        "Dirty ratios, before the run",
    },
    "compact-dry": {
        *("Bytes before and after", "Segments of the biggest partitions"),
        "Dirty ratios, before the run",
    },
    "apply": {
        *("Bytes before and after", "Segments of the biggest partitions"),
        "Dirty ratios, before the run",
    },
    "retain": {
        *("Bytes before and after", "Segments of the biggest partitions"),
        "The last runs",
    },
    "run": {
        *("Bytes before and after", "Segments of the biggest partitions"),
        *("Dirty ratios, before the run", "The last runs"),
    },
    "recover": {"Bytes before and after", "Segments of the biggest partitions"},
}


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """Take a folder away for a while."""
    elsewhere = folder.rename(folder.with_suffix(".away"))
    try:
        yield
    finally:
        elsewhere.rename(folder)


@pytest.fixture(scope="module")
def both_pages(pylog) -> Iterator[dict[str, tuple[Path, str]]]:
    """The pages of all commands, over directories that brokers left.

    Each is there a second time, as it is made when directories and ledger have gone.
    """
    made = Path(tempfile.mkdtemp(prefix="pylog-", dir="/tmp"))
    again = made.with_suffix(".html")

    def show_twice(view: Any, *how: Any) -> int:
        status = show(view, *how)
        with away(made):
            write_page(again, view.page())
        return status

    unpack_broker(made / "log")
    UNCLEAN.unpack(made).rename(made / "unclean")
    shutil.copytree(made / "unclean", made / "torn")
    log = max((made / "torn" / "events-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-100])
    shutil.copytree(made / "torn", made / "recovered")
    shutil.copytree(made / "unclean", made / "copy")
    shutil.rmtree(made / "copy" / "__cluster_metadata-0")
    (made / "copy" / "meta.properties").unlink()
    for name in ("done", "retained", "applied"):
        shutil.copytree(made / "log", made / name)
    looked_at = ("log", "unclean", "torn", "copy")
    before = {name: read_tree(made / name) for name in looked_at}
    written = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in iter_modules(cli.__path__, f"{cli.__name__}."):
            import_module(module.name)  # one that came later would keep what is patched
        for module in ("runner", "inspect"):
            patch.setattr(f"pylog_spark.cli.{module}.show", show_twice)
        for name, command in COMMANDS.items():
            page = made / f"{name}.html"
            result = pylog(*command.replace("{}", str(made)).split(), "--report", page)
            assert result.exit_code in {0, 1, 3}, result.stderr
            written[name] = (page, again.read_text(encoding="utf-8"))
    assert {name: read_tree(made / name) for name in looked_at} == before
    yield written
    shutil.rmtree(made)
    again.unlink()


@pytest.fixture(scope="module")
def pages(both_pages) -> dict[str, Path]:
    return {name: page for name, (page, _) in both_pages.items()}


def sections_of(page: Path) -> dict[str, str]:
    """Return what stands below each heading of a page."""
    parts = re.split(r'<h2 id="section-\d+">(.*?)</h2>', page.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_its_pictures_and_tables(pages, name: str):
    sections = sections_of(pages[name])
    drawn = {heading for heading, text in sections.items() if "<svg" in text}
    assert drawn == DRAWN[name]
    assert "<table>" in "".join(sections.values())
    assert "could not be drawn" not in "".join(sections.values())
    tags = Tags(pages[name].read_text(encoding="utf-8"))
    assert tags.tags.count("h1") == tags.tags.count("script") == 1
    anchors = tags.attributes["id"]
    assert {link.removeprefix("#") for link in tags.attributes.get("href", ())} <= anchors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_made_without_a_look_at_any_directory(both_pages, name: str):
    page, made_without = both_pages[name]
    assert made_without == page.read_text(encoding="utf-8")


def test_pictures_show_what_would_go_and_what_would_be_cleaned(pages):
    text = sections_of(pages["run-dry"])["Segments of the biggest partitions"]
    states = set(re.findall(r'aria-label="[^"]+, (\w+)"', text))
    assert {"expired", "dirty", "active"} <= states
    # After retention nothing of it is left.
    text = sections_of(pages["run"])["Segments of the biggest partitions"]
    assert "expired" not in set(re.findall(r'aria-label="[^"]+, (\w+)"', text))


def test_a_page_has_the_runs_that_its_ledger_knows(pages):
    (first,) = re.findall(r"Run (\w+-\w+)", pages["retain"].read_text())
    history = sections_of(pages["run"])["The last runs"]
    assert first in history
    assert history.index("<svg") < history.index("<table>")
    assert len(re.findall(r'aria-label="run [^"]+ less', history)) == 2


def test_a_finding_leads_to_its_meaning(pages):
    sections = sections_of(pages["verify"])
    codes = set(re.findall(r'<a href="#([A-Z_]+)">', sections["Findings by kind"]))
    assert "TORN_TAIL" in codes
    meanings = sections["What the codes mean"]
    assert all(f'<tbody id="{code}">' in meanings for code in codes)


@pytest.mark.thorough
def test_what_cannot_be_looked_at_after_a_run_is_a_sentence(pylog, monkeypatch, pages, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise StorageError("/logs", "is gone")

    monkeypatch.setattr("pylog_spark.cli.jobs.segments_after_run", broken)
    root = unpack_broker(tmp_path / "log")
    page = tmp_path / "page.html"
    pylog.done("compact", root, *CLOSED.split(), "--dry-run", "--report", page)
    assert "They cannot be looked at: /logs: is gone" in page.read_text()


@pytest.mark.thorough
def test_the_metadata_of_another_log_directory_of_the_broker_counts(pylog, tmp_path):
    root = unpack_broker(tmp_path / "log")
    other = tmp_path / "other"
    other.mkdir()
    for path in root.iterdir():
        if path.is_file():
            shutil.copy(path, other)
    properties = (root / "meta.properties").read_text()
    identity = "directory.id=BAAAAAAAAAAAAAAAAAAABQ"
    (other / "meta.properties").write_text(re.sub(r"directory\.id=.*", identity, properties))
    (root / "clickstream-1").rename(other / "clickstream-1")
    page = tmp_path / "page.html"
    command = ("retain", root, other, *LATER.split(), "--dry-run", "--topics", "clickstream")
    pylog.done(*command, "--report", page)
    text = sections_of(page)["Segments of the biggest partitions"]
    assert re.search(r'aria-label="[^"]*other: clickstream-1, [^"]+, expired"', text)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["inspect", "survey", "doctor", "verify"])
def test_a_page_does_not_lie_among_somebodys_files(pylog, tmp_path, name: str):
    root = unpack_broker(tmp_path / "log")
    (root / "meta.properties").unlink()
    page = root / "page.html"
    result = pylog(name, root, "--report", page)
    assert result.exit_code == 2
    assert "lies inside the log directory" in " ".join(result.stderr.split())
    assert not page.exists()
    nowhere = pylog(name, root, "--report", tmp_path / "no" / "page.html")
    assert (nowhere.exit_code, nowhere.stdout) == (2, "")


@pytest.mark.thorough
def test_the_page_of_a_plan_does_not_lie_in_a_log_directory_of_it(pylog, tmp_path):
    root = unpack_broker(tmp_path / "log")
    plan = tmp_path / "plan.json"
    pylog.done("compact", root, *CLOSED.split(), "--dry-run", "--plan-out", plan)
    before = read_tree(root)
    result = pylog("apply", plan, "--report", root / "page.html", "--engine", "local")
    assert result.exit_code == 2
    assert "lies inside the log directory" in " ".join(result.stderr.split())
    assert read_tree(root) == before


def test_without_what_draws_a_page_has_tables_and_says_so(pylog, monkeypatch, tmp_path, broker_dir):
    monkeypatch.setattr("pylog_spark.cli.view_parts.can_draw", lambda: False)
    page = tmp_path / "page.html"
    assert pylog("inspect", broker_dir, "--report", page).exit_code == 0
    text = page.read_text()
    assert "<svg" not in text
    assert "pip install &#x27;pylog-spark[report]&#x27;" in text
    assert "events-0" in text


needs_browser = pytest.mark.skipif(
    find_chromium() is None, reason="there is no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    program = find_chromium()
    assert program is not None
    with Chromium(program, tmp_path_factory.mktemp("browser") / "profile") as chromium:
        yield chromium


@needs_browser
@pytest.mark.parametrize("name", COMMANDS)
def test_pictures_are_whole_on_a_phone(pages, browser, name: str):
    browser.open(pages[name])
    size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        rights = browser.evaluate(
            "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
        )
        assert all(right <= size["width"] for right in rights)
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


@needs_browser
@pytest.mark.parametrize("name", COMMANDS)
def test_a_browser_fetches_nothing_and_has_nothing_to_say(pages, browser, name: str):
    browser.open(pages[name])
    widths = browser.evaluate("[...document.querySelectorAll('svg')].map(s => s.clientWidth)")
    assert all(width > 100 for width in widths)
    browser.evaluate("document.querySelectorAll('th button').forEach(button => button.click())")
    assert browser.messages == []
    assert browser.requests == [pages[name].as_uri()]


def column_of(browser: Chromium, heading: str) -> list[str]:
    """Return the cells of a column of the last table that has it, as they stand."""
    return browser.evaluate(f"""(() => {{
        const buttons = [...document.querySelectorAll('th button')];
        const button = buttons.findLast(one => one.textContent === '{heading}');
        const heading = button.closest('th');
        const rows = [...heading.closest('table').tBodies];
        return rows.map(row => row.rows[0].cells[heading.cellIndex].dataset.value);
    }})()""")


@needs_browser
def test_a_click_sorts_and_another_one_turns_it_round(pages, browser):
    browser.open(pages["inspect"])
    click = (
        "[...document.querySelectorAll('th button')]"
        ".findLast(one => one.textContent === 'dirty bytes').click()"
    )
    before = column_of(browser, "dirty bytes")
    assert "" in before
    numbers = sorted(float(value) for value in before if value)
    nothing = [""] * before.count("")
    browser.evaluate(click)
    up = column_of(browser, "dirty bytes")
    assert [float(value) for value in up if value] + nothing == numbers + nothing
    assert up[len(numbers) :] == nothing
    browser.evaluate(click)
    down = column_of(browser, "dirty bytes")
    assert [float(value) for value in down if value] == numbers[::-1]
    assert down[len(numbers) :] == nothing
    assert browser.evaluate("document.querySelectorAll('th[aria-sort]').length") == 1


@needs_browser
def test_a_script_in_a_name_is_text_to_a_browser(pylog, browser, broker_dir, tmp_path):
    root = tmp_path / "log"
    shutil.copytree(broker_dir, root)
    (root / "<img src=x onerror=window.hit=1>").mkdir()
    (root / "<script>window.hit=1").mkdir()
    page = tmp_path / "page.html"
    assert pylog("inspect", root, "--report", page).exit_code == 4
    browser.open(page)
    assert browser.evaluate("typeof window.hit") == "undefined"
    assert "onerror=window.hit=1" in browser.evaluate("document.body.textContent")
    assert browser.requests == [page.as_uri()]
    assert browser.messages == []


@needs_browser
def test_a_page_is_light_or_dark_and_on_paper_light(pages, browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    looks = {}
    for scheme, medium in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        browser.open(pages["inspect"], scheme=scheme, medium=medium)
        looks[scheme, medium] = (browser.evaluate(paper), browser.evaluate(ink))
    assert looks["light", "screen"] == ("rgb(255, 255, 255)", "rgb(31, 35, 40)")
    assert looks["dark", "screen"] == ("rgb(20, 23, 27)", "rgb(221, 226, 232)")
    assert looks["dark", "print"] == looks["light", "screen"]


@needs_browser
def test_a_page_prints(pages, browser):
    browser.open(pages["run"])
    answer = browser.call("Page.printToPDF", printBackground=True)
    assert len(answer["data"]) > 20_000


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_documents_show_a_page(pages, browser, scheme: str):
    browser.open(pages["run"], scheme=scheme)
    height = browser.evaluate("document.querySelector('#section-4').offsetTop")
    png = browser.screenshot(height)
    kept = PICTURES / f"report-{scheme}.png"
    if IS_KEPT_ANEW:
        PICTURES.mkdir(exist_ok=True)
        kept.write_bytes(png)
    # Letters are drawn differently by each version and each machine's fonts.
    width, height = struct.unpack(">II", kept.read_bytes()[16:24])
    seen_width, seen_height = struct.unpack(">II", png[16:24])
    assert width == seen_width
    assert abs(height - seen_height) < seen_height / 4
