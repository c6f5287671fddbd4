"""Spark's Java classes are kept by a warm-up, and taken by the JVM of a job."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.cli import warmup as warmup_java
from pylog_spark.cli.warmup import keep_java_classes
from pylog_spark.java import (
    Java,
    JavaNotFoundError,
    class_archive,
    classes_digest,
    find_java,
    options_to_use,
)
from pylog_spark.session import session_conf
from tests.kit.program import run_to_end


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java of which a cache of its own knows nothing; a warm-up without Delta finds it."""
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "java"
    home.mkdir()
    (home / "release").write_text("17")
    found = Java(home=home, runtime=home, version=17, origin="PATH")
    monkeypatch.setattr(warmup_java, "find_java", lambda: found)
    monkeypatch.setattr(warmup_java, "is_delta_installed", lambda: False)
    monkeypatch.setattr(warmup_java, "has_session", lambda: False)
    return found


@pytest.fixture
def archive(java: Java) -> Path:
    """The archive of the classes of that Java, kept."""
    path = class_archive(java, [])
    path.write_bytes(b"classes")
    return path


def shared_by(
    java: Java, *, master: str = "local[2]", said: str = "", is_of_job: bool = True
) -> set[str]:
    """Return the options about archives that a JVM is given."""
    conf = {"spark.driver.extraJavaOptions": said} if said else {}
    found = session_conf(master, conf, delta=False, is_of_job=is_of_job, java=java)
    options = found["spark.driver.extraJavaOptions"].split(" ")
    return {option for option in options if "Archive" in option or "Xshare" in option}


def test_the_jvm_of_a_job_takes_what_is_kept(java: Java, archive: Path):
    assert shared_by(java) == {f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"}


@pytest.mark.usefixtures("archive")
def test_no_other_jvm_does(java: Java):
    assert not shared_by(java, is_of_job=False)
    assert not shared_by(java, master="local-cluster[2,1,1024]")
    (java.home / "release").write_text("21")
    assert not shared_by(java)


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("said", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa"])
def test_the_callers_archive_is_the_only_one(java: Java, said: str):
    assert shared_by(java, said=said) == {said}


def test_without_an_archive_a_jvm_reads_its_classes(java: Java):
    assert not shared_by(java)


def test_an_archive_is_of_its_jars_as_they_lie_there(java: Java, tmp_path: Path):
    jar = tmp_path / "delta.jar"
    jar.write_bytes(b"jar")
    digests = {classes_digest(java, []), classes_digest(java, [jar])}
    os.utime(jar, ns=(0, 0))
    digests.add(classes_digest(java, [jar]))
    assert len(digests) == 3


@pytest.mark.thorough
def test_a_java_that_cannot_take_an_archive_says_nothing(tmp_path: Path):
    archive = tmp_path / "broken.jsa"
    archive.write_bytes(b"no archive at all")
    command = [find_java().executable, *options_to_use(archive), "-version"]
    done = run_to_end(command, check=True)
    assert (done.stdout, "archive" in done.stderr.lower()) == ("", False)


def test_a_warm_up_keeps_them_once(java: Java, monkeypatch: pytest.MonkeyPatch):
    made: list[Path] = []

    def record(path: Path, *, delta: bool) -> None:
        assert not delta
        made.append(path)
        path.write_bytes(b"classes")

    monkeypatch.setattr(warmup_java, "record_classes", record)
    archive = class_archive(java, [])
    # Of a Java that was here before.
    archive.with_name("0123456789abcdef.jsa").write_bytes(b"old")
    for _ in range(2):
        assert str(archive) in (keep_java_classes() or "")
    assert len(made) == 1
    # Others never see one that is not whole.
    assert made[0] != archive
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_a_java_that_makes_no_archive_is_no_error(java: Java, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warmup_java, "record_classes", lambda _path, **_named: None)
    assert "makes no archive" in (keep_java_classes() or "")
    assert not class_archive(java, []).exists()


@pytest.mark.usefixtures("java")
def test_without_java_a_warm_up_says_why_they_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    def find_none() -> Java:
        raise JavaNotFoundError(("PATH: none",))

    monkeypatch.setattr(warmup_java, "find_java", find_none)
    assert "not kept: no Java" in (keep_java_classes() or "")


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("name", ["is_spark_installed", "has_session"])
def test_without_a_spark_of_its_own_a_warm_up_says_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(warmup_java, name, lambda: name == "has_session")
    assert keep_java_classes() is None


def test_an_archive_of_another_java_is_another(java: Java, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "release").write_text("21")
    assert class_archive(replace(java, home=other), []) != class_archive(java, [])
