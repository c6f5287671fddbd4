"""What S3 lets the holder of an IAM policy do, for the requests that this project makes.

After Amazon's "Required permissions for Amazon S3 API operations" and "Policy evaluation logic".
moto's own check looks at one action a request and at no condition. It knows neither the sources of
copies, nor that an object that is not there is a 403 to whoever may not list.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import unescape

_OF_A_BUCKET = {
    "versioning": "GetBucketVersioning",
    "object-lock": "GetBucketObjectLockConfiguration",
    "encryption": "GetEncryptionConfiguration",
    "lifecycle": "GetLifecycleConfiguration",
    "replication": "GetReplicationConfiguration",
    "requestPayment": "GetBucketRequestPayment",
    "uploads": "ListBucketMultipartUploads",
    "list-type": "ListBucket",
}
_OF_AN_OBJECT = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject"}
_OF_ALL = {"Sid", "Effect", "Action", "Resource", "Condition"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that a request has to be allowed."""

    action: str  # as policies call it
    resource: str  # name of the bucket or object (ARN)
    context: Mapping[str, str] = field(default_factory=dict)  # what conditions may ask for


def needs_of(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Iterator[Need]:
    """Yield all that a request has to be allowed."""
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    name = f"arn:aws:s3:::{bucket}"
    if key:
        action = _OF_AN_OBJECT.get(method)
        if method == "DELETE":
            action = "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
        if action is None:
            raise ValueError(f"{method} {target}")
        yield Need(action=f"s3:{action}", resource=f"{name}/{key}")
        source = headers.get("x-amz-copy-source")
        if source:
            place = unquote(source).lstrip("/").partition("?")[0]
            yield Need(action="s3:GetObject", resource=f"arn:aws:s3:::{place}")
    elif method == "POST" and "delete" in query:
        for found in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            yield Need(action="s3:DeleteObject", resource=f"{name}/{unescape(found)}")
    else:
        actions = [action for word, action in _OF_A_BUCKET.items() if word in query]
        if method != "GET" or not actions:
            raise ValueError(f"{method} {target}")
        context = {"s3:prefix": query["prefix"][0]} if "prefix" in query else {}
        yield Need(action=f"s3:{actions[0]}", resource=name, context=context)


def absence_of(target: str) -> Need:
    """Return what has to be allowed of whoever is to be told that an object is not there."""
    bucket = unquote(urlsplit(target).path).lstrip("/").partition("/")[0]
    return Need(action="s3:ListBucket", resource=f"arn:aws:s3:::{bucket}")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of an IAM user or role: whatever no statement allows is refused."""

    statements: tuple[Mapping[str, Any], ...]

    @classmethod
    def parse(cls, text: str) -> "Policy":
        document = json.loads(text)
        assert document["Version"] == "2012-10-17"
        for statement in document["Statement"]:
            assert statement.keys() <= _OF_ALL
            assert statement["Effect"] == "Allow"
            assert isinstance(statement["Action"], list)
        return cls(tuple(document["Statement"]))

    def allows(self, need: Need) -> bool:
        return any(_covers(statement, need) for statement in self.statements)

    def actions(self) -> list[tuple[str, str]]:
        """Return each statement's name with each of its actions."""
        return [(one["Sid"], action) for one in self.statements for action in one["Action"]]

    def without(self, sid: str, action: str) -> "Policy":
        """Return the policy but for one action of one statement."""
        return Policy(
            tuple(
                {**one, "Action": [word for word in one["Action"] if word != action]}
                if one["Sid"] == sid
                else one
                for one in self.statements
            )
        )


def _covers(statement: Mapping[str, Any], need: Need) -> bool:
    return (
        need.action in statement["Action"]
        and any(_is_like(need.resource, pattern) for pattern in _listed(statement["Resource"]))
        and all(
            _holds(operator, key, _listed(patterns), need.context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, patterns in keys.items()
        )
    )


def _holds(operator: str, key: str, patterns: list[str], context: Mapping[str, str]) -> bool:
    if operator not in {"StringLike", "StringLikeIfExists"}:
        raise ValueError(operator)
    if key not in context:
        return operator == "StringLikeIfExists"
    return any(_is_like(context[key], pattern) for pattern in patterns)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _is_like(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern of IAM: * is any text, ? any letter."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.DOTALL) is not None
