"""Passwords in URLs: gone from every text, and texts without any stay as they are."""

import time

import pytest

from storage_core.redaction import has_password, is_secret_name, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://me:hunter2@host:22/logs", "sftp://me:***@host:22/logs"),
        ("managed+ftp://:hunter2@host/x: no such", "managed+ftp://:***@host/x: no such"),
        ("s3://AKIA:hunter2/x+y@bucket/key", "s3://AKIA:***@bucket/key"),
        ("smb://me:hunter2@@host/x", "smb://me:***@host/x"),
        ("a://b:hunter2@c and d://e:hunter2@f", "a://b:***@c and d://e:***@f"),
        ("sc://host:15002/;token=hunter2;user_id=me", "sc://host:15002/;token=***;user_id=me"),
        (
            "https://b/x.csv?X-Amz-Date=1&X-Amz-Signature=hunter2&sig=hunter2",
            "https://b/x.csv?X-Amz-Date=1&X-Amz-Signature=***&sig=***",
        ),
        ("sftp://me:***@host/x", "sftp://me:***@host/x"),
        (
            "https://b/x?to=https://c/y?my.token-1=hunter2",
            "https://b/x?to=https://c/y?my.token-1=***",
        ),
        (
            '{"ledger": "hdfs://me:hunter2@nn/x", "a": "b@c"}',
            '{"ledger": "hdfs://me:***@nn/x", "a": "b@c"}',
        ),
    ],
)
def test_a_password_in_a_url_is_not_shown(text, shown):
    assert without_secrets(text) == shown
    assert "hunter2" not in shown
    assert has_password(text) == (":***@" in shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://bucket/a:b@c",
        "hdfs://nn:8020/user/a@b/ledger",
        "abfss://container@account.dfs.core.windows.net/x",
        "ssh://me@host/x",
        "spark://host:7077",
        "a:b@c",
        "https://h/x?significant=1&page=2",
        "file:///a:b/c@d",
    ],
)
def test_what_holds_no_password_stays_as_it_is(text):
    assert without_secrets(text) == text
    assert not has_password(text)


@pytest.mark.parametrize(
    "text",
    [
        "://a:" * 40_000,
        "://a:" * 20_000 + "@" + "://a:" * 20_000,
        "://a:1/" * 40_000 + "@",
        "://" + "a:" * 80_000,
        "://&" + "token" * 40_000,
        "://" + "&a.token-" * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_is_made_to_keep_us_busy_takes_no_longer_than_others(text):
    started = time.process_time()
    without_secrets(text)
    has_password(text)
    # Where each place was looked at from each other it took minutes.
    assert time.process_time() - started < 5


def test_settings_are_secret_by_their_names():
    assert is_secret_name("spark.hadoop.fs.s3a.secret.key")
    assert is_secret_name("spark.ssl.keyPassword")
    assert not is_secret_name("spark.driver.memory")
