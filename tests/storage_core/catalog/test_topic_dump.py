"""Exported configs of topics: what Kafka's tool prints, our JSON, and what is neither."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog import topic_dump
from storage_core.catalog.topic_dump import TopicDump, parse_topic_dump
from storage_core.errors import CheckpointError

WRITTEN_MS = 1_700_000_000_000
TAKEN_MS = 1_690_000_000_000

# As ConfigCommand of Kafka 4.4 prints it: every key with --all, else only what the topic sets.
ALL = """\
All configs for topic orders are:
  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
  confluent.tier.enable=true sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:confluent.tier.enable=true}
  leader.replication.throttled.replicas= sensitive=false synonyms={}
  message.timestamp.type=null sensitive=true synonyms={}
  retention.ms=86400000 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.retention.hours=24}
All configs for topic a.b-c_D are:
  retention.ms=86400000 sensitive=false synonyms={STATIC_BROKER_CONFIG:log.retention.hours=24}
"""  # noqa: E501  # lines of Kafka's
DYNAMIC = """\
Dynamic configs for topic __consumer_offsets are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact}
Dynamic configs for topic plain are:
"""


def parse(text: str | bytes) -> TopicDump:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_topic_dump(content, file="dump", modified_ms=WRITTEN_MS)


def document(**changes) -> str:
    plain = {"format": "pylog-topics", "version": 1, "taken_ms": TAKEN_MS, "topics": {}}
    return json.dumps(plain | changes)


def line_of(text: str | bytes) -> int:
    with pytest.raises(CheckpointError) as caught:
        parse(text)
    assert str(caught.value).startswith("dump")
    assert len(str(caught.value)) < 500
    return caught.value.line


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_kafkas_tool_prints_is_read_with_the_values_in_force(ends: str):
    dump = parse(ALL.replace("\n", ends))
    assert dump.topics == {
        "orders": {
            "cleanup.policy": "compact,delete",
            "leader.replication.throttled.replicas": "",
            "retention.ms": "86400000",
        },
        "a.b-c_D": {"retention.ms": "86400000"},
    }
    assert dump.ignored_keys == {"orders": ("confluent.tier.enable",)}
    # The tool says no time: that of the file counts.
    assert dump.taken_ms == WRITTEN_MS


def test_a_topic_without_settings_of_its_own_is_known():
    dump = parse(DYNAMIC)
    assert dump.topics == {"__consumer_offsets": {"cleanup.policy": "compact"}, "plain": {}}


def test_json_says_its_own_time():
    topics = {"orders": {"cleanup.policy": "compact", "retention.ms": -1, "preallocate": True}}
    dump = parse("\ufeff" + document(topics=topics))
    assert dump.taken_ms == TAKEN_MS
    assert dump.topics == {
        "orders": {"cleanup.policy": "compact", "retention.ms": "-1", "preallocate": "true"}
    }


def test_equal_settings_of_many_topics_are_one_object():
    text = "".join(
        f"All configs for topic t{n} are:\n  flush.ms=1 sensitive=false synonyms={{}}\n"
        for n in range(100)
    )
    assert len({id(settings) for settings in parse(text).topics.values()}) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ("\n\n", 0),
        ("  flush.ms=1 sensitive=false synonyms={}\n", 1),
        (DYNAMIC + "Error: timed out\n", 4),
        (ALL + "  flush.ms\n", 9),
        (ALL + "  flush.ms=1\n", 9),
        (ALL + "All configs for topic orders are:\n", 9),
        (ALL.replace("confluent.tier.enable", "cleanup.policy"), 3),
        (ALL.replace("a.b-c_D", "a/b"), 7),
        (ALL.replace("a.b-c_D", "a" * 250), 7),
        (ALL.encode() + b"\xff\n", 9),
        ('{\n "format": "pylog-topics",\n version: 1}', 3),
        (b'{\n "format": "\xff"}', 2),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_what_cannot_be_understood_is_named_with_its_line(text: str | bytes, line: int):
    assert line_of(text) == line


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        document(format="other"),
        document(version=2),
        document(taken_ms=-1),
        document(taken_ms=True),
        document(taken_ms=10**30),
        document(more=1),
        document(topics=[]),
        document(topics={"t": "x"}),
        document(topics={"t": {"flush.ms": None}}),
        document(topics={"t": {"flush.ms": 1.5}}),
        document(topics={"a/b": {}}),
        document().replace('"topics": {}', '"topics": {"t": {}, "t": {}}'),
        document(taken_ms=0).replace('"taken_ms": 0', '"taken_ms": NaN'),
        document(taken_ms=0).replace('"taken_ms": 0', f'"taken_ms": {"9" * 5000}'),
        '{"a":' * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_json_of_another_form_is_refused(text: str):
    line_of(text)


SYNONYMS = " sensitive=false synonyms={"
HOSTILE = {
    "a line that almost ends as a setting, again and again": DYNAMIC + "  a=" + SYNONYMS * 150_000,
    "an object with a name that stands twice among many": document(
        topics={f"t{number}": {} for number in range(60_000)}
    ).replace('"t59998"', '"t59999"'),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_long_and_wrong_is_refused_in_no_time(text: str):
    """In a time that grew with the square of the length it took minutes."""
    line_of(text)


def test_the_first_place_where_synonyms_begin_ends_the_value():
    text = DYNAMIC + f"  flush.ms=1{SYNONYMS}X:a=b{SYNONYMS}}}}}\n"
    assert parse(text).topics["plain"] == {"flush.ms": "1"}


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(topic_dump, "MAX_DUMP_BYTES", 10)
    assert line_of(DYNAMIC) == 0


@given(st.lists(st.sampled_from(ALL.splitlines()) | st.text(max_size=60), max_size=12))
def test_any_text_is_read_or_refused(lines: list[str]):
    try:
        dump = parse("\n".join(lines).encode("utf-8", "replace"))
    except CheckpointError:
        return
    assert dump.topics
