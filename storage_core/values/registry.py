"""The schemas of a schema registry: of its topic, or of files.

A registry keeps every version of every schema as a record of the topic ``_schemas``
(https://docs.confluent.io/platform/current/schema-registry/develop/api.html, Karapace likewise)::

    key    {"keytype": "SCHEMA", "subject": "orders-value", "version": 2, "magic": 1}
    value  {"subject", "version", "id", "guid", "schema", "schemaType", "references", "deleted"},
           or null

``schemaType`` is AVRO where it is not there. A subject may begin with the name of a context,
``:.staging:orders-value``; numbers are unique in a context. A version that was deleted was the
schema of earlier values, so it is kept.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from storage_core.json_values import parse_json
from storage_core.values.avro_values import MAX_SCHEMA_BYTES
from storage_core.wording import count_text

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMAS_TOPIC: Final = "_schemas"
AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
OWN_FILE: Final = "schema of the registry"  # no name that a file imports
KINDS: Final = {".avsc": AVRO, ".json": JSON, ".proto": PROTOBUF}  # of files
# Of all records together; a registry of ten thousand schemas has some dozens of MB.
_MAX_BYTES: Final = 512 << 20
_MAX_NUMBER: Final = 2**31 - 1
PREFIX_BYTES: Final = 5  # before a value: a zero and the schema's number
GUID_BYTES: Final = 16
_CONTEXT: Final = re.compile(r":(\.[^:]*):")
_SHOWN_SUBJECTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema with all that it refers to; a value that pickles."""

    kind: str  # as registries name it: AVRO, JSON, PROTOBUF
    text: str
    # What it refers to, directly or not, by the names by which it does: each behind its own.
    references: tuple[tuple[str, str], ...] = ()
    message: str | None = None  # full name of what is read of Protobuf; its first message without

    @property
    def texts(self) -> tuple[str, ...]:
        """Its text, behind those of the schemas that it refers to."""
        return (*dict.fromkeys(text for _, text in self.references), self.text)

    @property
    def files(self) -> dict[str, str]:
        """The same by the names by which files of Protobuf import them, its own as OWN_FILE."""
        return {**dict(self.references), OWN_FILE: self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """A version of a subject's schema, as a record has it."""

    subject: str  # empty for a file
    version: int
    number: int  # unique in its context
    kind: str
    text: str
    # Names by which it refers to others, with their subjects and versions.
    references: tuple[tuple[str, str, int], ...] = ()
    guid: UUID | None = None
    is_deleted: bool = False

    @property
    def context(self) -> str:
        """The context of its number; empty for the default one."""
        match = _CONTEXT.match(self.subject)
        return "" if match is None else match[0]


@dataclass(frozen=True, kw_only=True)
class SchemaRegistry:
    """The schemas of a registry by number; a value that pickles."""

    place: str  # where they were read
    versions: tuple[SchemaVersion, ...]
    _by_version: dict[tuple[str, int], SchemaVersion] = field(init=False, repr=False)
    _by_number: dict[int, dict[str, SchemaVersion]] = field(init=False, repr=False)
    _by_guid: dict[UUID, SchemaVersion] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Index the versions."""
        by_number: dict[int, dict[str, SchemaVersion]] = {}
        for each in self.versions:
            by_number.setdefault(each.number, {})[each.context] = each
        indexes = {
            "_by_version": {(each.subject, each.version): each for each in self.versions},
            "_by_number": by_number,
            "_by_guid": {each.guid: each for each in self.versions if each.guid is not None},
        }
        for name, index in indexes.items():
            object.__setattr__(self, name, index)

    @property
    def subjects(self) -> list[str]:
        """The names of the subjects, sorted."""
        return sorted({each.subject for each in self.versions if each.subject})

    def newest(self, subject: str) -> SchemaVersion | None:
        """Return the newest version of a subject that is not deleted, or else of the deleted ones;
        None for none. A subject that the default context lacks is that of the one other context
        that has it."""
        contexts: dict[str, list[SchemaVersion]] = {}
        for each in self.versions:
            if each.subject.removeprefix(each.context) == subject:
                contexts.setdefault(each.context, []).append(each)
        if "" not in contexts and len(contexts) > 1:
            return None
        found = contexts.get("") or next(iter(contexts.values()), [])
        return max(found, key=lambda each: (not each.is_deleted, each.version), default=None)

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema of a number. A number that the default context lacks is that of the
        one other context that has it.

        Raises:
            ValueError: No schema has it, several have, or what it refers to is not there.
        """
        contexts = self._by_number.get(number)
        if contexts is None:
            raise ValueError(f"schema {number} is not in {self.place}")
        if "" not in contexts and len(contexts) > 1:
            several = ", ".join(sorted(contexts))
            raise self._unusable(number, f"several contexts have one: {several}")
        return self.with_references(contexts.get("") or next(iter(contexts.values())))

    def number_of(self, guid: UUID) -> int:
        """Return the number of the schema that has a GUID.

        Raises:
            ValueError: No schema has it.
        """
        version = self._by_guid.get(guid)
        if version is None:
            raise ValueError(f"the schema with the GUID {guid} is not in {self.place}")
        return version.number

    def read_id(self, header: str, written: bytes) -> tuple[int, bytes]:
        """Return the number of the schema that a record's header names, and what belongs before the
        value. Of Protobuf the message within the schema is named there too.

        Args:
            header: Its name, for messages.

        Raises:
            ValueError: It names none.
        """
        match written[:1]:
            case b"\x00" if len(written) >= PREFIX_BYTES:
                return int.from_bytes(written[1:PREFIX_BYTES], "big"), written[PREFIX_BYTES:]
            case b"\x01" if len(written) > GUID_BYTES:
                guid = UUID(bytes=written[1 : 1 + GUID_BYTES])
                return self.number_of(guid), written[1 + GUID_BYTES :]
        shown = written[:GUID_BYTES].hex()
        reason = f"expected a zero and a number, or a one and a GUID, found {shown or 'nothing'}"
        raise ValueError(f"header {header}: {reason}")

    def with_references(self, version: SchemaVersion) -> RegisteredSchema:
        """Return a version's schema with all that it refers to, directly or not.

        Raises:
            ValueError: A reference is not there, or leads back.
        """
        done: dict[tuple[str, int], list[str]] = {}  # with the names of each
        open_: set[tuple[str, int]] = set()
        waiting = [version]
        while waiting:
            each = waiting[-1]
            own = each.subject, each.version
            open_.add(own)
            needed = list(_qualified(each))
            missing = [other for _, other in needed if other not in done]
            if not missing:
                for name, other in needed:
                    done[other] += [name] if name not in done[other] else []
                done.setdefault(own, [])
                open_.discard(own)
                waiting.pop()
                continue
            found = self._by_version.get(missing[0])
            if found is None or missing[0] in open_:
                what = "is not there" if found is None else "refers back to it"
                subject, number = missing[0]
                reason = f"refers to version {number} of {subject}, which {what}"
                raise self._unusable(version.number, reason)
            waiting.append(found)
        references = [
            (name, self._by_version[each].text) for each, names in done.items() for name in names
        ]
        return RegisteredSchema(kind=version.kind, text=version.text, references=tuple(references))

    def subjects_text(self) -> str:
        """Return the first subjects, for a person."""
        subjects = self.subjects
        more = ", ..." if len(subjects) > _SHOWN_SUBJECTS else ""
        return ", ".join(subjects[:_SHOWN_SUBJECTS]) + more

    def _unusable(self, number: int, reason: str) -> ValueError:
        return ValueError(f"schema {number} of {self.place}: {reason}")


def id_header(name: str) -> str:
    """Return the name of the record's header that names the schema of its ``key`` or ``value``. The
    first such header of a record counts, and its value has no prefix then."""
    return f"__{name}_schema_id"


def read_registry(batches: Iterable["pa.RecordBatch"], where: str) -> SchemaRegistry:
    """Return the schemas of the registry's topic.

    Args:
        batches: Its records: key, value.
        where: What has the topic, for messages.

    Raises:
        ValueError: It has more than 512 MiB.
    """
    versions: dict[tuple[str, int], SchemaVersion] = {}
    deleted: dict[str, int] = {}  # subjects, with their newest version at that time
    size = malformed = 0
    for batch in batches:
        size += batch.nbytes
        if size > _MAX_BYTES:
            raise ValueError(f"{SCHEMAS_TOPIC} in {where} has more than {_MAX_BYTES} bytes")
        for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                _replay(versions, deleted, key, value)
            except ValueError:
                malformed += 1
    unread = f" ({count_text(malformed, 'record')} of it malformed)" if malformed else ""
    place = f"{SCHEMAS_TOPIC} in {where}{unread}"
    return SchemaRegistry(
        place=place,
        versions=tuple(
            replace(
                each, is_deleted=each.is_deleted or each.version <= deleted.get(each.subject, 0)
            )
            for each in versions.values()
        ),
    )


def read_schema_folder(folder: Path) -> SchemaRegistry:
    """Return the schemas of files that are named by their numbers: ``7.avsc`` is one of Avro,
    ``8.json`` a JSON schema, ``9.proto`` one of Protobuf. None of them refers to another.

    Raises:
        ValueError: There are none.
        OSError: The folder cannot be read.
    """
    versions = tuple(
        SchemaVersion(
            subject="", version=int(file.stem), number=int(file.stem), kind=kind, text=text
        )
        for file, kind, text in _schema_files(folder)
    )
    if not versions:
        raise ValueError("expected files that are named by the numbers of schemas: 7.avsc, 8.json")
    return SchemaRegistry(place=str(folder), versions=versions)


def read_schema_file(file: Path) -> RegisteredSchema:
    """Return the schema of a file: ``.avsc``, ``.json`` or ``.proto``.

    Raises:
        ValueError: Its name says no kind of schema, or it is no text of UTF-8.
        OSError: It cannot be read.
    """
    if file.suffix not in KINDS:
        raise ValueError(f"expected a file that ends with one of {', '.join(KINDS)}")
    with file.open("rb") as opened:
        content = opened.read(MAX_SCHEMA_BYTES + 1)
    if len(content) > MAX_SCHEMA_BYTES:
        raise ValueError(f"has more than {MAX_SCHEMA_BYTES} bytes")
    return RegisteredSchema(kind=KINDS[file.suffix], text=content.decode())


def _schema_files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    for file in sorted(folder.iterdir()):
        is_number = file.stem.isascii() and file.stem.isdigit() and len(file.stem) < 11  # noqa: PLR2004  # digits of 2^31
        if file.suffix in KINDS and is_number:
            schema = read_schema_file(file)
            yield file, schema.kind, schema.text


def _replay(
    versions: dict[tuple[str, int], SchemaVersion],
    deleted: dict[str, int],
    key: bytes | None,
    value: bytes | None,
) -> None:
    """Take a record: a version, its deletion, or one about something else."""
    fields = _fields(key, keytype=str)
    if fields["keytype"] == "DELETE_SUBJECT" and value is not None:
        whole = _fields(value, subject=str, version=int)
        deleted[whole["subject"]] = whole["version"]
    if fields["keytype"] != "SCHEMA":
        return
    if value is None:
        named = fields.get("subject"), fields.get("version")
        if named in versions:
            versions[named] = replace(versions[named], is_deleted=True)
        return
    version = _version(_fields(value, subject=str, version=int, id=int, schema=str))
    versions[version.subject, version.version] = version


def _version(fields: dict[str, Any]) -> SchemaVersion:
    if not 0 <= fields["id"] <= _MAX_NUMBER:
        raise ValueError(f"expected a number of 31 bits, found {fields['id']}")
    references = fields.get("references") or []
    if not isinstance(references, list):
        raise ValueError("expected a list of references")  # noqa: TRY004  # malformed bytes
    named = [_fields(each, subject=str, version=int) for each in references]
    guid = fields.get("guid")
    return SchemaVersion(
        subject=fields["subject"],
        version=fields["version"],
        number=fields["id"],
        kind=str(fields.get("schemaType") or AVRO),
        text=fields["schema"],
        references=tuple(
            (str(each.get("name", "")), each["subject"], each["version"]) for each in named
        ),
        guid=UUID(guid) if isinstance(guid, str) else None,
        is_deleted=fields.get("deleted") is True,
    )


def _fields(content: object, **types: type) -> dict[str, Any]:
    """Return an object of JSON whose fields have these types."""
    if isinstance(content, bytes):
        content = parse_json(content, limit_bytes=2 * MAX_SCHEMA_BYTES)
    if not isinstance(content, dict) or any(
        type(content.get(name)) is not kind for name, kind in types.items()
    ):
        raise ValueError(f"expected an object with {', '.join(types)}")
    return content


def _qualified(version: SchemaVersion) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield what a version refers to; a subject without a context is one of its own context."""
    for name, subject, number in version.references:
        whole = subject if _CONTEXT.match(subject) else version.context + subject
        yield name, (whole, number)
