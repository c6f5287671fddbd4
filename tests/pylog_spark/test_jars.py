import importlib.machinery
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pylog_spark import java as jars
from pylog_spark.java import Exclusion, JarsUnavailableError, Java, Library, fetch_jars

LIBRARY = Library(group="org.example", artifact="lib", version="1.0")

# Stands for java: notes that it was called, keeps the module file, makes two jars, or fails.
FAKE_JAVA = """\
#!/bin/sh
echo "$*" >> {calls}
for argument in "$@"; do
    case "$previous" in -ivy) cp "$argument" {calls}.xml ;; -retrieve) target="$argument" ;; esac
    previous="$argument"
done
{behaviour}
mkdir -p "$(dirname "$target")"
: > "$(dirname "$target")/lib-1.0.jar"
: > "$(dirname "$target")/another-2.0.jar"
"""


class Ivy:
    """A java that only pretends, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.home, self.calls_file = folder, folder / "calls"
        (folder / "bin").mkdir(parents=True)
        self.behave("")

    def behave(self, behaviour: str) -> None:
        script = self.home / "bin" / "java"
        script.write_text(FAKE_JAVA.format(calls=self.calls_file, behaviour=behaviour))
        script.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    @property
    def module(self) -> str:
        return Path(f"{self.calls_file}.xml").read_text()


@pytest.fixture
def ivy(tmp_path, monkeypatch) -> Ivy:
    fake = Ivy(tmp_path / "java")
    found = Java(home=fake.home, runtime=fake.home, version=17, origin="JAVA_HOME")
    monkeypatch.setattr(jars, "find_java", lambda: found)
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "pyspark" / "jars" / "ivy-2.5.3.jar").touch()
    pyspark = importlib.machinery.ModuleSpec("pyspark", None, is_package=True)
    pyspark.submodule_search_locations = [str(tmp_path / "pyspark")]
    monkeypatch.setattr(jars, "find_spec", lambda _name: pyspark)
    return fake


def test_jars_are_fetched_once(tmp_path, ivy):
    folder = tmp_path / "cache" / "lib-1.0"
    first = fetch_jars([LIBRARY], folder)
    assert [jar.name for jar in first] == ["another-2.0.jar", "lib-1.0.jar"]
    assert fetch_jars([LIBRARY], folder) == first
    assert len(ivy.calls) == 1
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["lib-1.0", "lib-1.0.lock"]


def test_processes_that_want_the_same_wait_for_the_first(tmp_path, ivy):
    ivy.behave("sleep 0.2")
    folder = tmp_path / "cache" / "lib-1.0"
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: fetch_jars([LIBRARY], folder), range(4)))
    assert all(result == results[0] for result in results)
    assert len(ivy.calls) == 1


def test_the_libraries_and_what_is_left_out_are_named_to_ivy(tmp_path, ivy):
    settings = tmp_path / "settings.xml"
    fetch_jars(
        [LIBRARY],
        tmp_path / "jars",
        exclusions=[Exclusion(group="org.unwanted", artifact="*")],
        ivy_settings=settings,
    )
    assert '<dependency org="org.example" name="lib" rev="1.0"' in ivy.module
    assert '<exclude org="org.unwanted" module="*"/>' in ivy.module
    assert f"-settings {settings}" in ivy.calls[0]


def test_a_failure_says_what_ivy_said_and_leaves_nothing(tmp_path, ivy):
    ivy.behave("echo 'lib#1.0: not found'; exit 1")
    folder = tmp_path / "cache" / "lib-1.0"
    with pytest.raises(JarsUnavailableError, match=r"org\.example:lib:1\.0.*not found"):
        fetch_jars([LIBRARY], folder)
    assert [entry.name for entry in folder.parent.iterdir()] == ["lib-1.0.lock"]


def test_an_answer_without_jars_is_a_failure(tmp_path, ivy):
    ivy.behave("exit 0")
    with pytest.raises(JarsUnavailableError, match="no reason"):
        fetch_jars([LIBRARY], tmp_path / "jars")


def test_a_server_that_java_does_not_trust_is_asked_again_with_the_authorities_of_python(
    tmp_path, ivy
):
    ivy.behave(
        'case "$*" in *trustStore=*) ;; *) echo "PKIX path building failed: x"; exit 1 ;; esac'
    )
    assert len(fetch_jars([LIBRARY], tmp_path / "jars")) == 2
    assert len(ivy.calls) == 2


def test_without_pyspark_the_error_names_the_extra(tmp_path, ivy, monkeypatch):
    monkeypatch.setattr(jars, "find_spec", lambda _name: None)
    with pytest.raises(JarsUnavailableError, match=r"pylog-spark\[local\]"):
        fetch_jars([LIBRARY], tmp_path / "jars")
