"""What commands about several brokers say of metadata that are damaged."""

from pathlib import Path
from typing import Any

import pytest

from tests.pylog_spark.cli import test_metadata_unknown as unknown
from tests.pylog_spark.cli.test_metadata_unknown import metadata_of, unpack

state = unknown.state


def test_a_transplant_takes_no_configs_and_no_ids_of_damaged_metadata(tmp_path: Path, pylog: Any):
    damaged, other = (
        unpack(name, tmp_path / name)[0] for name in ("meta_flip", "metadata_trimmed")
    )
    taken = pylog("transplant", damaged, "--to", other, "--topics", "audit", "--dry-run")
    text = " ".join(taken.stdout.split())
    assert "its metadata is damaged, so the configs in it do not count" in text
    assert "--create --topic audit --partitions 2" in text
    assert "retention.bytes" not in text
    refused = pylog("transplant", other, "--to", damaged, "--topics", "*", "--dry-run")
    assert refused.exit_code == 2
    assert "its metadata is damaged" in refused.stderr


def test_a_rebuild_says_what_a_damaged_older_copy_does_not(tmp_path: Path, pylog: Any):
    roots = unpack("meta_flip", tmp_path)
    older = metadata_of(roots).rename(tmp_path / "older")
    (tmp_path / "new").mkdir()
    words = (*roots, "--into", f"4={tmp_path / 'new'}", "--release-version", "4.4")
    result = pylog(
        "metadata", "rebuild", *words, "--older-copy", older, "--role", "broker", "--dry-run"
    )
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "records 47 to 47 are damaged: settings are those of offset 47" in text
    assert "configs of topic audit: retention.bytes" in text


@pytest.mark.sampled(2)
def test_an_audit_says_that_its_metadata_are_damaged(state: tuple[list[Path], str], pylog: Any):
    roots, problem = state
    text = " ".join(pylog("audit", *roots).stdout.split())
    assert problem in text
