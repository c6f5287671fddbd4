"""What is to be known of a bucket before it is written to, as moto tells it."""

import pytest

from storage_core.store.bucket_settings import RemarkCode, inspect_bucket
from storage_core.store.s3_objects import S3ObjectStore
from tests.s3.fault_proxy import Fault, FaultKind

KEY_ID = "arn:aws:kms:us-east-1:123456789012:key/0"


@pytest.fixture
def server(moto, server):
    """moto only: versitygw answers few of these questions."""
    if server is not moto:
        pytest.skip("versitygw does not know these settings")
    return server


def remarks(bucket: str) -> dict[RemarkCode, str]:
    found = inspect_bucket(f"{bucket}/some/root")
    assert len({remark.code for remark in found}) == len(found)
    return {remark.code: remark.message for remark in found}


def rule(**more) -> dict[str, object]:
    return {"ID": "mine", "Status": "Enabled", "Filter": {"Prefix": "some/"}, **more}


@pytest.mark.sampled(1)
def test_a_plain_bucket_keeps_unfinished_uploads(bucket, server):
    assert set(remarks(bucket)) == {RemarkCode.PARTS_STAY}
    # Six settings and one page.
    assert len(server.requests) == 7


def test_a_bucket_that_aborts_them_needs_no_remark(bucket):
    S3ObjectStore(bucket).call(
        "put_bucket_lifecycle_configuration",
        LifecycleConfiguration={
            "Rules": [rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})]
        },
    )
    assert remarks(bucket) == {}


def test_rules_that_delete_or_move_are_told(bucket):
    S3ObjectStore(bucket).call(
        "put_bucket_lifecycle_configuration",
        LifecycleConfiguration={
            "Rules": [
                rule(
                    Expiration={"Days": 30},
                    Transitions=[{"Days": 10, "StorageClass": "GLACIER"}],
                ),
                rule(ID="off") | {"Status": "Disabled", "Expiration": {"Days": 1}},
            ]
        },
    )
    found = remarks(bucket)
    assert set(found) == {
        RemarkCode.LIFECYCLE_EXPIRES,
        RemarkCode.LIFECYCLE_MOVES,
        RemarkCode.PARTS_STAY,
    }
    assert "mine" in found[RemarkCode.LIFECYCLE_EXPIRES]
    assert "'some/'" in found[RemarkCode.LIFECYCLE_EXPIRES]
    assert "GLACIER" in found[RemarkCode.LIFECYCLE_MOVES]


def test_versions_locks_and_payers_are_told(bucket):
    store = S3ObjectStore(f"{bucket}-locked")
    store.call("create_bucket", ObjectLockEnabledForBucket=True)
    store.call(
        "put_object_lock_configuration",
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 30}},
        },
    )
    found = remarks(store.url)
    assert {RemarkCode.VERSIONED, RemarkCode.OBJECT_LOCK} <= set(found)
    assert "30 days in mode COMPLIANCE" in found[RemarkCode.OBJECT_LOCK]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("has_key", [False, True], ids=["without bucket key", "with bucket key"])
def test_encryption_that_asks_for_every_object_is_told(bucket, has_key):
    S3ObjectStore(bucket).call(
        "put_bucket_encryption",
        ServerSideEncryptionConfiguration={
            "Rules": [
                {
                    "ApplyServerSideEncryptionByDefault": {
                        "SSEAlgorithm": "aws:kms",
                        "KMSMasterKeyID": KEY_ID,
                    },
                    "BucketKeyEnabled": has_key,
                }
            ]
        },
    )
    assert (RemarkCode.KMS_WITHOUT_BUCKET_KEY in remarks(bucket)) is not has_key


def test_classes_of_the_objects_are_told(bucket):
    store = S3ObjectStore(f"{bucket}/some/root")
    for number, name in enumerate(["STANDARD", "STANDARD_IA", "STANDARD_IA", "GLACIER"]):
        store.call("put_object", Key=f"some/root/t-0/{number}.log", Body=b"x", StorageClass=name)
    found = remarks(bucket)
    assert found[RemarkCode.STORAGE_CLASS].startswith("2 of the first 4 objects")
    assert found[RemarkCode.ARCHIVED_OBJECTS].startswith("1 of the first 4 objects")


def test_what_may_not_be_asked_is_told_and_nothing_fails(bucket, server, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server.faults.append(Fault(kind=FaultKind.INTERNAL_ERROR, operation="GET versioning", times=9))
    found = remarks(bucket)
    assert found[RemarkCode.NOT_ASKED].startswith("get_bucket_versioning: InternalError")


def test_other_stores_have_nothing_to_tell(tmp_path):
    assert inspect_bucket(str(tmp_path)) == []
    assert inspect_bucket("memory://bucket/root") == []
