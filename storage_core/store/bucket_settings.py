"""Warn of an S3 bucket's settings with costs, deletions or retention. A plan shows the remarks.
Asked before the first write and put into the plan; nothing here refuses."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from storage_core.errors import StorageError
from storage_core.store.object_store import ObjectStore
from storage_core.store.open_objects import open_object_store

_SAMPLE: Final = 1000
# Error codes of the calls below for a setting that is not configured.
_NOTHING_CODES: Final = frozenset(
    {
        "NoSuchLifecycleConfiguration",
        "ObjectLockConfigurationNotFoundError",
        "ObjectLockConfigurationNotFound",
        "ReplicationConfigurationNotFoundError",
        "ServerSideEncryptionConfigurationNotFoundError",
    }
)
_STANDARD: Final = frozenset({"", "STANDARD", "EXPRESS_ONEZONE", "INTELLIGENT_TIERING"})
_ARCHIVED: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_KMS: Final = frozenset({"aws:kms", "aws:kms:dsse"})


class RemarkCode(enum.StrEnum):
    """The setting that a remark is about."""

    ARCHIVED_OBJECTS = "ARCHIVED_OBJECTS"
    KMS_WITHOUT_BUCKET_KEY = "KMS_WITHOUT_BUCKET_KEY"
    LIFECYCLE_EXPIRES = "LIFECYCLE_EXPIRES"
    LIFECYCLE_MOVES = "LIFECYCLE_MOVES"
    NOT_ASKED = "NOT_ASKED"
    OBJECT_LOCK = "OBJECT_LOCK"
    PARTS_STAY = "PARTS_STAY"
    REPLICATED = "REPLICATED"
    REQUESTER_PAYS = "REQUESTER_PAYS"
    STORAGE_CLASS = "STORAGE_CLASS"
    VERSIONED = "VERSIONED"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRemark:
    """A setting that a person should know before the first write."""

    code: RemarkCode
    message: str  # the fact, and what follows from it


def inspect_bucket(url: str) -> list[BucketRemark]:
    """Return remarks on a bucket's settings; none for other stores.

    It costs six requests and one page of the listing. A forbidden request gives a remark, too.
    """
    objects = open_object_store(url)
    call = getattr(objects, "call", None)
    if call is None:
        return []
    remarks: list[BucketRemark] = []
    for method, read in (
        ("get_bucket_versioning", _versioning),
        ("get_object_lock_configuration", _object_lock),
        ("get_bucket_encryption", _encryption),
        ("get_bucket_lifecycle_configuration", _lifecycle),
        ("get_bucket_replication", _replication),
        ("get_bucket_request_payment", _request_payment),
    ):
        try:
            answer = call(method)
        except OSError as error:
            remarks += _unanswered(method, error)
        else:
            remarks += read(answer)
    return [*remarks, *_storage_classes(objects)]


def _versioning(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    status = answer.get("Status")
    if status:
        yield BucketRemark(
            code=RemarkCode.VERSIONED,
            message=f"versioning is {status.lower()}: what a purge deletes, and every manifest and "
            "lease that is replaced, stays as an older version and is paid for until a lifecycle "
            "rule for noncurrent versions removes it",
        )


def _object_lock(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    configuration = answer.get("ObjectLockConfiguration", {})
    if configuration.get("ObjectLockEnabled") == "Enabled":
        retention = configuration.get("Rule", {}).get("DefaultRetention", {})
        duration = (
            f"by default for {retention.get('Days') or retention.get('Years')} "
            f"{'days' if retention.get('Days') else 'years'} in mode {retention.get('Mode')}"
            if retention
            else "where a retention is set"
        )
        yield BucketRemark(
            code=RemarkCode.OBJECT_LOCK,
            message=f"object lock is on: versions cannot be deleted {duration}, so retention and "
            "purge free no space before that",
        )


def _encryption(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    for rule in answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", ()):
        algorithm = rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm")
        if algorithm in _KMS and not rule.get("BucketKeyEnabled"):
            yield BucketRemark(
                code=RemarkCode.KMS_WITHOUT_BUCKET_KEY,
                message=f"encryption is {algorithm} without a bucket key: every read and write of "
                "an object is one more request to KMS, paid for and throttled there",
            )


def _lifecycle(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    rules = [rule for rule in answer.get("Rules", ()) if rule.get("Status") == "Enabled"]
    for rule in rules:
        name, where = rule.get("ID", "without a name"), _rule_prefix(rule)
        if "Expiration" in rule and rule["Expiration"].keys() & {"Days", "Date"}:
            yield BucketRemark(
                code=RemarkCode.LIFECYCLE_EXPIRES,
                message=f"lifecycle rule {name} deletes objects below {where!r} by age "
                f"({rule['Expiration']}): a manifest would name objects that are gone",
            )
        for transition in rule.get("Transitions", ()):
            yield BucketRemark(
                code=RemarkCode.LIFECYCLE_MOVES,
                message=f"lifecycle rule {name} moves objects below {where!r} to "
                f"{transition.get('StorageClass')}: reading them costs more, or needs a restore",
            )
    if not any("AbortIncompleteMultipartUpload" in rule for rule in rules):
        yield _PARTS_STAY


def _replication(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    rules = answer.get("ReplicationConfiguration", {}).get("Rules", ())
    if any(rule.get("Status") == "Enabled" for rule in rules):
        yield BucketRemark(
            code=RemarkCode.REPLICATED,
            message="replication is on: what is written is copied and paid for there as well, and "
            "a manifest may arrive before the objects that it names",
        )


def _request_payment(answer: Mapping[str, Any]) -> Iterator[BucketRemark]:
    if answer.get("Payer") == "Requester":
        yield BucketRemark(
            code=RemarkCode.REQUESTER_PAYS, message="whoever reads pays for requests and transfer"
        )


def _storage_classes(objects: ObjectStore) -> Iterator[BucketRemark]:
    try:
        classes = [info.storage_class for info in islice(objects.list(), _SAMPLE)]
    except StorageError as error:
        yield BucketRemark(code=RemarkCode.NOT_ASKED, message=f"cannot be listed: {error}")
        return
    for name in sorted(set(classes) - _STANDARD):
        share = f"{classes.count(name)} of the first {len(classes)} objects are of class {name}"
        if name in _ARCHIVED:
            yield BucketRemark(
                code=RemarkCode.ARCHIVED_OBJECTS,
                message=f"{share}: they cannot be read before they are restored",
            )
        else:
            yield BucketRemark(
                code=RemarkCode.STORAGE_CLASS,
                message=f"{share}: reading is paid for by the byte, and deleting early as if they "
                "had stayed their minimum time",
            )


def _unanswered(method: str, error: OSError) -> Iterator[BucketRemark]:
    cause = error.__cause__
    code = getattr(cause, "response", {}).get("Error", {}).get("Code", "")
    if code == "NoSuchLifecycleConfiguration":
        yield _PARTS_STAY
    if code not in _NOTHING_CODES:
        yield BucketRemark(
            code=RemarkCode.NOT_ASKED, message=f"{method}: {code or type(error).__name__}: {error}"
        )


def _rule_prefix(rule: Mapping[str, Any]) -> str:
    condition = rule.get("Filter") or rule
    return str(condition.get("Prefix") or condition.get("And", {}).get("Prefix") or "")


_PARTS_STAY: Final = BucketRemark(
    code=RemarkCode.PARTS_STAY,
    message="no lifecycle rule aborts unfinished multipart uploads: what a killed process had "
    "uploaded stays, unseen and paid for",
)
