"""From files and command lines to options: who wins, and who is refused."""

import os
import re
import tracemalloc
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from pylog_spark.options import TUNING_KEYS, ConfigEntry, HighWatermarkSource, JobConfig, JobOptions
from pylog_spark.options.load import broker_config, load_config, read_config_file
from pylog_spark.options.option import CommandLine
from pylog_spark.run.catalogs import dump_notes
from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import build_topic_catalog
from storage_core.config import CleanupPolicy, ConfigKey, OffsetMapHash, Scope, known_keys
from storage_core.errors import ConfigError

NOW_MS = 1_700_000_000_000


def load(**written: object) -> JobConfig:
    return load_config(CommandLine(written), now_ms=NOW_MS)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def entry_of(config: JobConfig, key: str) -> ConfigEntry:
    (entry,) = [entry for entry in config.entries if entry.key == key]
    return entry


def test_without_files_and_flags_the_defaults_hold():
    options = load().options
    assert options.now_ms == NOW_MS
    assert options.now_is_said is False
    assert (options.include, options.exclude, options.role) == ((), (), None)
    assert options.high_watermark is HighWatermarkSource.CHECKPOINT
    assert options.mark_clean is True
    assert (options.ledger, options.master) == (None, None)
    assert options.cleaner.offset_map_hash is OffsetMapHash.SIPHASH
    assert options.cleaner.dedupe_buffer_bytes is None
    assert (options.topic_settings, options.topic_configs) == ({}, {})


def test_a_later_file_wins_over_an_earlier_one_and_a_flag_over_both(tmp_path: Path):
    first = written(tmp_path / "a.yaml", "role: mirror\nledger: /a\nmaster: local[1]\n")
    second = written(tmp_path / "b.yaml", "role: managed\nledger: /b\n")
    config = load(config_files=[first, second], role="broker")
    assert config.options.role is Role.BROKER
    assert (config.options.ledger, config.options.master) == ("/b", "local[1]")
    origins = [entry_of(config, key).origin for key in ("role", "ledger", "master", "mark_clean")]
    assert origins == ["--role", str(second), str(first), "defaults.yaml"]


def test_settings_and_topics_of_files_are_merged_entry_by_entry(tmp_path: Path):
    first = written(
        tmp_path / "a.yaml",
        "settings: {offset-map.hash: md5, retention.ms: 5}\ntopics: {a: {retention.ms: 1}}\n",
    )
    second = written(tmp_path / "b.yaml", "settings: {retention.ms: 6}\ntopics: {b: {}}\n")
    options = load(config_files=[first, second]).options
    assert options.topic_settings == {"retention.ms": "6"}
    assert options.cleaner.offset_map_hash is OffsetMapHash.MD5
    assert options.topic_configs == {"a": {"retention.ms": "1"}, "b": {}}


def test_lists_are_replaced_as_a_whole(tmp_path: Path):
    file = written(tmp_path / "a.yaml", "include: [a, b]\nexclude: [c]\n")
    options = load(config_files=[file], include=["d"]).options
    assert (options.include, options.exclude) == (("d",), ("c",))


def test_yaml_scalars_become_the_texts_that_kafka_takes(tmp_path: Path):
    text = """
topics:
  orders:
    cleanup.policy: [compact, delete]
    preallocate: true
    min.cleanable.dirty.ratio: 0.1
    retention.ms: -1
spark: {spark.ui.enabled: false, spark.driver.cores: 2}
"""
    options = load(config_files=[written(tmp_path / "a.yaml", text)]).options
    assert options.topic_configs["orders"] == {
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.1",
        "retention.ms": "-1",
    }
    assert options.spark_conf == {"spark.ui.enabled": "false", "spark.driver.cores": "2"}


def test_each_kind_of_setting_goes_where_it_belongs():
    options = load(
        settings=[
            "retention.ms=1",
            "log.retention.hours=2",
            "log.cleaner.delete.retention.ms=3",
            "offset-map.hash=md5",
            "unit.max.bytes=4",
            "node.id=5",
            "retention.ms=6",
        ]
    ).options
    assert options.topic_settings == {"retention.ms": "6"}
    assert options.broker_overrides == {
        "log.retention.hours": "2",
        "log.cleaner.delete.retention.ms": "3",
        "node.id": "5",
    }
    assert options.cleaner.offset_map_hash is OffsetMapHash.MD5
    assert options.tuning.unit_max_bytes == 4


@pytest.mark.item("CFG-37")
def test_a_topics_own_setting_wins_over_the_brokers_and_that_over_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    properties = written(
        tmp_path / "server.properties",
        "log.retention.hours=1\nlog.retention.minutes=2\nlog.segment.bytes=2000000\nfoo.bar=hush\n",
    )
    topics = written(tmp_path / "a.yaml", "topics: {own: {retention.ms: 3}, other: {}}\n")
    options = load(server_properties=properties, config_files=[topics]).options
    assert "foo.bar" not in options.broker_settings
    assert "foo.bar" in caplog.text
    assert "hush" not in caplog.text
    catalog = build_topic_catalog(
        explicit=options.topic_configs,
        broker=options.broker_settings,
        broker_overrides=options.broker_overrides,
        settings=options.topic_settings,
    )
    own, other = catalog.config_for("own"), catalog.config_for("other")
    assert own is not None
    assert other is not None
    assert (own.retention_ms, other.retention_ms) == (3, 120_000)
    assert (own.segment_bytes, own.index_interval_bytes) == (2_000_000, 4096)


def test_the_size_of_a_brokers_offset_map_is_not_taken_over(tmp_path: Path):
    properties = written(
        tmp_path / "server.properties",
        "log.cleaner.dedupe.buffer.size=4194304\nlog.cleaner.threads=3\n"
        "producer.id.expiration.ms=7\n",
    )
    cleaner = load(server_properties=properties).options.cleaner
    assert (cleaner.dedupe_buffer_bytes, cleaner.threads) == (None, 1)
    assert cleaner.producer_id_expiration_ms == 7
    said = load(settings=["log.cleaner.dedupe.buffer.size=4194304"]).options.cleaner
    assert said.dedupe_buffer_bytes == 4_194_304


def of_file(tmp_path: Path, text: str, release: str | None = None) -> JobOptions:
    """Return the options of a run on a broker's file."""
    line = CommandLine({"server_properties": written(tmp_path / "server.properties", text)})
    return load_config(line, now_ms=NOW_MS, release=release).options


def test_a_file_goes_by_the_newest_release_that_takes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    options = of_file(tmp_path, "log.segment.bytes=1024\ncordoned.log.dirs=/gone\n")
    assert (options.release, options.broker_settings) == ("3.9", {"log.segment.bytes": "1024"})
    assert "Kafka 4.4 refuses log.segment.bytes=1024: must be at least 1048576" in caplog.text
    entry = entry_of(load(server_properties=tmp_path / "server.properties"), "segment.bytes")
    assert entry.value == "1024"
    empty = dict.fromkeys(field.name for field in fields(ClusterMetadata))
    metadata = ClusterMetadata(
        **{**empty, "topics": {}, "broker_configs": {"": {"log.retention.ms": "7"}}}
    )
    catalog = build_topic_catalog(
        metadata=metadata,
        explicit={"t": {}},
        broker=options.broker_settings,
        release=options.release,
    )
    config = catalog.config_for("t")
    assert config is not None
    # By the limits of 4.4 the file and the dynamic config together would be refused.
    assert (config.segment_bytes, config.retention_ms) == (1024, 7)


def test_a_file_that_no_release_takes_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes=13: must be at least 1048576$"):
        of_file(tmp_path, "log.segment.bytes=13\n")


@pytest.mark.parametrize(
    ("text", "release"),
    [("log.dirs=/a,", "4.1"), ("log.dirs=/a,/a", "4.4"), ("node.id=-1", "3.9")],
)
def test_values_are_read_by_the_newest_release_that_takes_them(
    tmp_path: Path, text: str, release: str
):
    options = of_file(tmp_path, f"{text}\n")
    assert options.release == release
    assert broker_config(options).directories == (("/a",) if "dirs" in text else ())


def test_a_named_release_judges_the_file(tmp_path: Path):
    text = "log.segment.bytes=1024\n"
    assert of_file(tmp_path, text, "3.9").release == "3.9"
    with pytest.raises(ConfigError) as refused:
        of_file(tmp_path, text, "4.0")
    said = "log.segment.bytes=1024: must be at least 1048576 in Kafka 4.0; --release-version"
    assert said in str(refused.value)
    assert str(tmp_path / "server.properties") in str(refused.value)


def test_server_properties_of_a_file_are_found_beside_it(tmp_path: Path):
    (tmp_path / "conf").mkdir()
    written(tmp_path / "conf" / "server.properties", "log.retention.ms=9\n")
    file = written(tmp_path / "conf" / "a.yaml", "server_properties: server.properties\n")
    config = load(config_files=[file])
    assert config.options.broker_settings == {"log.retention.ms": "9"}
    entry = entry_of(config, "retention.ms")
    assert entry.value == "9"
    assert "server.properties (log.retention.ms)" in entry.origin


def test_a_said_clock_wins_over_the_machines():
    options = load(now_ms=5).options
    assert (options.now_ms, options.now_is_said) == (5, True)


def test_every_setting_says_where_it_comes_from(tmp_path: Path):
    file = written(tmp_path / "a.yaml", "settings: {window.bytes: 1024}\ntopics: {t: {}}\n")
    config = load(config_files=[file], settings=["retention.ms=1", "log.segment.ms=2"][:1])
    assert entry_of(config, "window.bytes").origin == str(file)
    assert entry_of(config, "retention.ms").origin == "--set"
    assert entry_of(config, "segment.ms").origin == "default"
    assert entry_of(config, "topics.t").origin == str(file)
    assert entry_of(config, "window.bytes").unit == "bytes"


def test_secrets_of_the_spark_session_are_not_shown(tmp_path: Path):
    text = "spark: {spark.hadoop.fs.s3a.secret.key: hush, spark.ui.port: 7}\n"
    config = load(config_files=[written(tmp_path / "a.yaml", text)])
    assert entry_of(config, "spark: spark.hadoop.fs.s3a.secret.key").value == "(hidden)"
    assert entry_of(config, "spark: spark.ui.port").value == "7"
    assert config.options.spark_conf["spark.hadoop.fs.s3a.secret.key"] == "hush"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rolle: broker", "rolle=broker: unknown key; did you mean role?"),
        ("role: boss", "role"),
        ("include: orders", "include"),
        ("mark_clean: yes please", "mark_clean"),
        ("settings: {retention.msec: 1}", "did you mean retention.ms?"),
        ("settings: {retention.ms: soon}", "retention.ms=soon"),
        ("settings: [a]", "settings"),
        ("settings: {retention.ms: null}", "settings.retention.ms"),
        ("topics: {orders: {cleanup.polcy: compact}}", "topics.orders.cleanup.polcy"),
        ("topics: {orders: {cleanup.policy: shrink}}", "topics.orders.cleanup.policy=shrink"),
        ("topics: {orders: compact}", "topics.orders"),
        ("role: broker\nrole: mirror", "the key 'role' stands twice"),
        ("max_bytes: lots", "max_bytes=lots: expected a number of bytes"),
        ("max_delete_ratio: 7", "max_delete_ratio=7: expected a number between 0 and 1"),
        ("trash: s3://b/t", "trash=s3://b/t: expected a folder of this machine"),
        ("server_properties: gone", "server_properties="),
        ("topic_dump: gone", "topic_dump="),
        ("purge_after: soon", "purge_after=soon: expected a duration"),
        ("- role", "expected a mapping"),
        ("role: [", "is no YAML"),
        ("role: !!python/object/apply:os.getcwd []", "is no YAML"),
        ("\x00", "is no YAML"),
    ],
    ids=str,
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str, said: str):
    file = written(tmp_path / "a.yaml", text)
    with pytest.raises(ConfigError) as refused:
        load(config_files=[file])
    assert said in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("said", ["../t", "{tmp}/x/../t", "file://{tmp}/x/../t", "{tmp}/link/../t"])
def test_the_trash_is_an_absolute_path_without_a_way_up(tmp_path: Path, monkeypatch, said: str):
    (tmp_path / "link").symlink_to("x/y")
    (tmp_path / "x" / "y").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "x")
    expected = tmp_path / ("x/t" if "link" in said else "t")
    assert load(trash=said.format(tmp=tmp_path)).options.trash == str(expected)


def test_a_flag_that_is_wrong_is_not_blamed_on_the_file_that_says_it_too(tmp_path: Path):
    file = written(tmp_path / "a.yaml", "max_bytes: 1GiB\nsettings: {retention.ms: 1}\n")
    with pytest.raises(ConfigError, match=r"^--max-bytes=lots: "):
        load(config_files=[file], max_bytes="lots")
    with pytest.raises(ConfigError, match=r"^retention\.ms=soon: "):
        load(config_files=[file], settings=["retention.ms=soon"])


def test_a_run_that_is_none_is_not_exact():
    with pytest.raises(ConfigError, match=r"^--exact: expected --dry-run=exact$"):
        load(exact=True)
    assert load(exact=True, dry_run=True).options.exact is True


def test_an_empty_file_says_nothing(tmp_path: Path):
    assert load(config_files=[written(tmp_path / "a.yaml", "# later\n")]).options == load().options


@pytest.mark.parametrize("flag", ["config_files", "server_properties"])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, flag: str):
    path = tmp_path / "nothing"
    with pytest.raises(ConfigError, match="No such file"):
        load(**{flag: [path] if flag == "config_files" else path})


def test_a_properties_file_that_is_none_is_refused(tmp_path: Path):
    path = written(tmp_path / "server.properties", "a=\\u12\n")
    with pytest.raises(ConfigError, match=r"server\.properties"):
        load(server_properties=path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("unit.max.byte=1", "did you mean unit.max.bytes?"),
        ("unit.max.bytes=0", "at least 1"),
        ("log.cleaner.thread=1", "did you mean log.cleaner.threads?"),
        ("min.compaction.lag.ms=9223372036854775807", None),
        ("log.retention.ms=0", "unlimited"),
        ("retention.ms", "expected KEY=VALUE"),
        ("=1", "expected KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, said: str | None):
    if said is None:
        load(settings=[setting])
        return
    with pytest.raises(ConfigError) as refused:
        load(settings=[setting])
    assert said in str(refused.value)


DUMP = """\
All configs for topic orders are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact}
"""
DAY_MS = 86_400_000


def aged(path: Path, days: int) -> Path:
    path.write_text(DUMP)
    seconds = NOW_MS // 1000 - days * DAY_MS // 1000
    os.utime(path, (seconds, seconds))
    return path


def test_an_export_of_topics_is_read_with_its_age_and_shown_with_its_origin(tmp_path: Path):
    aged(tmp_path / "topics.txt", days=2)
    file = written(tmp_path / "a.yaml", "topic_dump: topics.txt\n")
    config = load(config_files=[file])
    dump = config.options.topic_dump
    assert dump is not None
    assert dump.topics == {"orders": {"cleanup.policy": "compact"}}
    assert dump.taken_ms == NOW_MS - 2 * DAY_MS
    assert entry_of(config, "topic_dump").origin == str(file)
    shown = entry_of(config, "topic_dump.orders")
    assert shown.value == "cleanup.policy=compact"
    assert shown.origin == f"{tmp_path / 'topics.txt'}, exported 2023-11-12T22:13:20.000Z"
    (note,) = dump_notes(config.options)
    assert "configs of 1 topics" in note
    assert "2 days before the run's clock" in note
    assert "WARNING" not in note


@pytest.mark.parametrize(
    ("days", "said", "is_old"), [(7, "7d", False), (8, "7d", True), (8, "9d", False)]
)
def test_an_export_that_is_too_old_is_warned_of(tmp_path: Path, days: int, said: str, is_old: bool):
    file = written(tmp_path / "a.yaml", f"topic_dump_max_age: {said}\n")
    dump = aged(tmp_path / "topics.txt", days)
    (note,) = dump_notes(load(config_files=[file], topic_dump=dump).options)
    assert note.startswith("WARNING") == is_old
    assert dump_notes(load().options) == ()


def test_an_export_that_cannot_be_understood_is_a_bad_option_with_its_line(tmp_path: Path):
    bad = written(tmp_path / "topics.txt", DUMP + "nonsense\n")
    with pytest.raises(ConfigError, match=r"topics\.txt: line 3: expected"):
        load(topic_dump=bad)
    with pytest.raises(ConfigError, match="No such file"):
        load(topic_dump=tmp_path / "none")
    with pytest.raises(ConfigError, match="topic_dump_max_age"):
        load(config_files=[written(tmp_path / "a.yaml", "topic_dump_max_age: old\n")])


@pytest.mark.parametrize("said", ["0", "-1", "many"])
def test_a_limit_of_tasks_at_a_disk_is_at_least_one(tmp_path: Path, said: str):
    with pytest.raises(ConfigError, match=r"per[-_]disk"):
        load(config_files=[written(tmp_path / "a.yaml", f"per_disk: {said}\n")])
    config = load(config_files=[written(tmp_path / "b.yaml", "per_disk: 2\n")])
    assert config.options.limits.per_disk == 2
    assert load(per_disk=3).options.limits.per_disk == 3


def test_a_guard_that_there_is_not_cannot_be_switched_off():
    assert load(overrides=["NOT_THE_OWNER"]).options.limits.overrides == {"NOT_THE_OWNER"}
    with pytest.raises(ConfigError, match=r"^--override=X: expected CLOCK_PAST_RETENTION, "):
        load(overrides=["NOT_THE_OWNER", "X"])


def test_an_empty_limit_is_none_and_an_empty_time_is_wrong():
    options = load(max_bytes="", max_duration="", min_free="", trash="").options
    assert options == load().options
    with pytest.raises(ConfigError, match="--older-than"):
        load(purge_after="")
    with pytest.raises(ConfigError, match="--max-delete-ratio"):
        load(max_delete_ratio="")


# The files under conf/ agree with the code.


CONF = Path(__file__).parents[3] / "conf"
OURS: dict[str, ConfigKey] = {
    **{key: known for key, known in known_keys().items() if known.scope is Scope.PYLOG},
    **TUNING_KEYS,
}


def test_the_defaults_file_has_every_key_of_ours_with_its_default():
    assert read_config_file(CONF / "defaults.yaml")["settings"] == {
        key: known.default for key, known in OURS.items()
    }


@pytest.mark.parametrize("key", OURS)
def test_the_defaults_file_says_the_unit_or_the_choices_of_a_key(key: str):
    lines = (CONF / "defaults.yaml").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith(f"{key}:")]
    comment = line.partition("#")[2]
    known = OURS[key]
    expected = known.unit or known.valid
    assert set(re.findall(r"[a-z0-9]+", expected)) <= set(re.findall(r"[a-z0-9]+", comment))


def test_the_example_of_topic_configs_has_only_settings_that_kafka_takes():
    document = yaml.safe_load((CONF / "topics-example.yaml").read_text())
    assert set(document) == {"topics"}
    topics = read_config_file(CONF / "topics-example.yaml")["topics"]
    catalog = build_topic_catalog(explicit=topics)
    for name in topics:
        config = catalog.config_for(name.replace("*", "x"))
        assert config is not None
        assert config.cleanup_policy
    changelog = catalog.config_for("counts-changelog")
    assert changelog is not None
    assert (changelog.is_compacted, CleanupPolicy.DELETE in changelog.cleanup_policy) == (
        True,
        True,
    )


# A file of options that is malformed, or made to fill the memory: a line that says where.


TEN = ", ".join
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{TEN([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2_000))
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{TEN([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def complaint(folder: Path, content: str) -> str:
    path = folder / "options.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    said = str(caught.value)
    assert said.startswith(f"--config={path}: is no YAML: ")
    assert len(said) < 400
    return said.partition("is no YAML: ")[2]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("a: 1\n" + "b: " + "[" * 100_000, "line 2, column 35: ", id="lists"),
        pytest.param("a: " + "{b: " * 100_000, "line 1, column 125: ", id="mappings"),
        pytest.param("- " * 100_000, "line 1, column 65: ", id="blocks"),
        pytest.param("? " * 100_000, "line 1, column 65: ", id="keys"),
        pytest.param(CHAIN, "line 32, column 6: ", id="aliases of aliases"),
    ],
)
def test_what_is_nested_beyond_reason_is_refused_where_it_is(tmp_path, content, expected):
    assert complaint(tmp_path, content).startswith(expected + "is nested more than 32 levels deep")


@pytest.mark.parametrize("content", [LAUGHS, MERGES], ids=["lists", "merges"])
def test_aliases_that_stand_for_more_than_memory_holds_are_refused_unexpanded(
    tmp_path, content, monkeypatch
):
    monkeypatch.setattr("pylog_spark.options.load._MAX_FILE_BYTES", 1 << 20)
    tracemalloc.start()
    said = complaint(tmp_path, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "stands for more than 4000000 values, with its aliases" in said
    assert peak < 8 << 20


@pytest.mark.parametrize("content", ["topics: &a\n  x: *a\n", "topics: &a\n  <<: *a\n", "&a [*a]"])
def test_what_contains_itself_is_refused(tmp_path, content):
    assert "an alias stands within what it is an alias of" in complaint(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("role: broker\nper_disk: !!int x", "line 2, column 11: expected a YAML int, found x"),
        ("per_disk: !!int ''", "line 1, column 11: expected a YAML int, found "),
        ("mark_clean: !!bool maybe", "line 1, column 13: expected a YAML bool, found maybe"),
        ("a: 2026-13-45", "line 1, column 4: expected a YAML timestamp, found 2026-13-45"),
        ("a: !!timestamp x", "line 1, column 4: expected a YAML timestamp, found x"),
        ("a: !!float x", "line 1, column 4: expected a YAML float, found x"),
        ("topics: !!map [a]", "line 1, column 9: expected a mapping node, but found sequence"),
        ("topics: !!map abc", "line 1, column 9: expected a mapping node, but found scalar"),
        ("role: 'x", "line 1, column 9: found unexpected end of stream"),
        ("a: " + "9" * 100_000, "line 1, column 4: a number or a time of 100000 characters"),
        ("a: 0x" + "f" * 100_000, "line 1, column 4: a number or a time of 100002 characters"),
        ("a: 1" + ":1" * 100_000, "line 1, column 4: a number or a time of 200001 characters"),
    ],
)
def test_malformed_values_are_named_with_their_place_and_what_was_expected(
    tmp_path, content, expected
):
    assert complaint(tmp_path, content) == expected


def test_aliases_as_people_use_them_are_taken(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text(
        "topics:\n"
        "  orders: &compacted {cleanup.policy: compact, segment.bytes: 1048576}\n"
        "  payments: *compacted\n"
        "  users:\n"
        "    <<: *compacted\n"
        "    segment.bytes: 2097152\n"
    )
    topics = read_config_file(path)["topics"]
    assert topics is not None
    assert topics["payments"] == {"cleanup.policy": "compact", "segment.bytes": "1048576"}
    assert topics["users"] == {"cleanup.policy": "compact", "segment.bytes": "2097152"}
