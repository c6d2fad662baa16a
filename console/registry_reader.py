"""Reads of subjects and schemas through the registry's HTTP API, so that pages also work with a remote registry.

The reader has the permissions of `registry.client_*`; pages show each viewer only the subjects that this viewer may
read. At most `REQUESTS_MAX` reads run at once, so that a registry that does not respond leaves threads for other
sources.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace.avro_schema import AvroSchemaError, Schema
from headrace.console.errors import ConsoleError
from headrace.console.schema_rows import list_fields
from headrace.registry.client import RegisteredSchema, RegistryClient, SchemaReference, SubjectVersion
from headrace.registry.client.of_settings import registry_client
from headrace.registry.client.responses import parse_registered_schema
from headrace.registry.errors import RegistryError, RegistryUnavailable, SchemaNotFound, ServiceError
from headrace.registry.names import qualified, split_subject
from headrace.settings import Settings

T = TypeVar("T")

TIMEOUT_S: Final = 2.0
DECODING_TIMEOUT_S: Final = 0.6
"""The client makes up to three attempts, which a page of messages waits for."""
REQUESTS_MAX: Final = 6
OUTAGE_S: Final = 5.0
"""After a request without a response, other requests fail at once for this time."""
SUBJECTS_MAX: Final = 20_000
LISTED_MAX: Final = 100
"""Schemas in one response."""
HISTORY_MAX: Final = 100
"""Versions of a subject that pages show, the newest ones."""
HISTORY_READ_MAX: Final = 2_000
HISTORY_CHARS_MAX: Final = 16_000_000
"""Total length of the texts of a subject in memory; older versions are left out."""
INDEX_TIME_S: Final = 60.0
"""Longest time of reading the index."""
SCHEMA_CHARS_MAX: Final = 1_000_000
"""Longest schema text that is parsed."""
PARSED_CHARS_MAX: Final = 4_000_000
"""All texts of a subject that are parsed, from the newest to the oldest."""
INDEXED_CHARS_MAX: Final = 16 * 1024 * 1024
"""All names and docs of fields that the search looks into."""
TOO_LARGE: Final = "the schema text is too large to be shown field by field"


class RegistryBusy(ConsoleError):
    """`REQUESTS_MAX` earlier reads of the registry have not ended."""


@dataclass(frozen=True, slots=True)
class IndexedField:
    """A field for the search: its dotted path, and its doc."""

    path: str
    doc: str


@dataclass(frozen=True, slots=True)
class IndexedSubject:
    """The newest version of a subject. `registered_ms` is None if the registry does not state it. `text` has the names
    and docs of all fields in lower case."""

    version: int
    schema_id: int
    registered_ms: int | None
    fields: tuple[IndexedField, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SubjectIndex:
    """The newest versions by subject. `is_complete` is False if a limit was reached."""

    subjects: Mapping[str, IndexedSubject]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """A version of a subject. `schema` is None for the reason `problem`. `used_subjects` are the subjects of all
    direct and indirect references; findings that depend on their schemas require `read` on each."""

    version: int
    schema_id: int
    text: str
    schema_type: str
    references: tuple[SchemaReference, ...]
    registered_ms: int | None
    schema: Schema | None
    problem: str
    used_subjects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SubjectHistory:
    """The versions of a subject, ascending. `omitted` older ones are not read."""

    subject: str
    versions: tuple[ShownVersion, ...]
    omitted: int = 0

    @property
    def newest(self) -> ShownVersion:
        return self.versions[-1]

    def find(self, number: int) -> ShownVersion | None:
        return next((one for one in self.versions if one.version == number), None)


@dataclass(frozen=True, slots=True)
class SubjectConfiguration:
    """The compatibility level and the mode that apply to a subject."""

    level: str
    mode: str


class RegistryReader:
    """Reads the registry. Thread-safe. Its methods raise errors of the registry's client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._running = threading.BoundedSemaphore(REQUESTS_MAX)
        self._client: RegistryClient | None = None
        self._decoding: RegistryClient | None = None
        self._outage: tuple[float, RegistryUnavailable] | None = None
        self._index: Mapping[str, IndexedSubject] = {}

    def subjects(self) -> list[str]:
        """Returns the subjects of all contexts, at most `SUBJECTS_MAX`."""
        names = self._use(lambda client: client.subjects()[:SUBJECTS_MAX])
        if not all(isinstance(one, str) for one in names):
            raise ServiceError("the response to GET /subjects is not a list of names; check registry.url", status=200)
        return names

    def index(self) -> SubjectIndex:
        """Returns the fields of the newest versions. Schemas of the previous index are not parsed again."""
        index = self._use(self._read_index)
        self._index = index.subjects
        return index

    def history(self, subject: str) -> SubjectHistory:
        """Returns the versions of a subject; none if it does not exist."""
        return self._use(lambda client: _history(client, subject))

    def configuration(self, subject: str) -> SubjectConfiguration:
        return self._use(lambda client: SubjectConfiguration(client.compatibility(subject), client.mode(subject)))

    def usages(self, schema_id: int) -> list[SubjectVersion]:
        """Returns the subjects and versions with a schema id of the default context."""

        def read(client: RegistryClient) -> list[SubjectVersion]:
            try:
                return client.usages(schema_id)
            except SchemaNotFound:
                return []

        return self._use(read)

    def referenced(self, subject: str, references: Sequence[SchemaReference]) -> list[Schema]:
        """Returns the schemas that a version of a subject references directly."""

        def read(client: RegistryClient) -> list[Schema]:
            versions = [client.version(reference_subject(subject, one), one.version) for one in references]
            return [client.parsed(one) for one in versions]

        return self._use(read) if references else []

    def check(self, subject: str, text: str, references: Sequence[SchemaReference]) -> tuple[bool, list[str]]:
        """Returns the registry's verdict on a new schema, and its messages. Stores nothing."""
        return self._use(lambda client: client.check_compatibility(subject, text, references))

    def client(self) -> RegistryClient:
        """Returns a client with short time limits, to decode messages. It caches schemas.

        Raises:
            RegistryUnavailable: another request had no response a moment ago.
        """
        with self._lock:
            self._check_outage()
            if self._decoding is None:
                self._decoding = registry_client(self._settings, DECODING_TIMEOUT_S)
            return self._decoding

    def _use(self, read: Callable[[RegistryClient], T]) -> T:
        if not self._running.acquire(blocking=False):
            raise RegistryBusy(f"{REQUESTS_MAX} earlier requests to the registry have not ended; try again later")
        try:
            return read(self._connected())
        except RegistryError as error:
            with self._lock:
                self._client = None  # the address and the credentials may have changed
                if isinstance(error, RegistryUnavailable) and self._outage is None:
                    self._outage = (time.monotonic() + OUTAGE_S, error)
            raise
        finally:
            self._running.release()

    def _connected(self) -> RegistryClient:
        with self._lock:
            self._check_outage()
            if self._client is None:
                self._client = registry_client(self._settings, TIMEOUT_S)
            return self._client

    def _check_outage(self) -> None:
        if self._outage is not None and time.monotonic() < self._outage[0]:
            raise self._outage[1]
        self._outage = None

    def _read_index(self, client: RegistryClient) -> SubjectIndex:
        found: dict[str, IndexedSubject] = {}
        chars = 0
        end_s = time.monotonic() + INDEX_TIME_S
        for offset in range(0, SUBJECTS_MAX, LISTED_MAX):
            page = _listed(client, subjectPrefix=":*:", latestOnly="true", offset=offset)
            for one in page:
                subject, version, _ = _identity(one)
                known = self._index.get(subject)
                is_known = known is not None and (known.version, known.schema_id) == (version, int(one["id"]))
                found[subject] = known if known is not None and is_known else _indexed(client, one)
                chars += len(found[subject].text)
            if len(page) < LISTED_MAX:
                return SubjectIndex(found, is_complete=True)
            if chars > INDEXED_CHARS_MAX or time.monotonic() > end_s:
                break
        return SubjectIndex(found, is_complete=False)


def _listed(client: RegistryClient, **query: str | int) -> list[dict[str, Any]]:
    response = client.call(
        "GET", "/schemas", query={"limit": str(LISTED_MAX), **{key: str(value) for key, value in query.items()}}
    )
    if not isinstance(response, list) or not all(isinstance(one, dict) for one in response):
        raise ServiceError("the response to GET /schemas is not a list of schemas; check registry.url", status=200)
    for one in response:
        _identity(one)
    return response


def _identity(listed: Mapping[str, Any]) -> tuple[str, int, RegisteredSchema]:
    registered = parse_registered_schema(listed)
    parts = [registered.subject, *(part for one in registered.references for part in (one.name, one.subject))]
    numbers = [registered.version, *(one.version for one in registered.references)]
    parts.append(listed["schema"])
    if not all(isinstance(one, str) for one in parts) or not all(isinstance(one, int) for one in numbers):
        raise ServiceError("a schema in the response to GET /schemas has no valid subject or version", status=200)
    assert registered.subject is not None
    assert registered.version is not None
    return registered.subject, registered.version, registered


def _registered_ms(listed: Mapping[str, Any]) -> int | None:
    value = listed.get("ts")
    return value if isinstance(value, int) and value > 0 else None


def _indexed(client: RegistryClient, listed: Mapping[str, Any]) -> IndexedSubject:
    _, version, registered = _identity(listed)
    shown = _shown(client, listed, with_references=False)
    fields = tuple(
        IndexedField(path, field.doc or "") for path, field in (list_fields(shown.schema) if shown.schema else ())
    )
    text = "\n".join(f"{one.path}\n{one.doc}" for one in fields).lower()
    return IndexedSubject(version, registered.schema_id, _registered_ms(listed), fields, text)


def _history(client: RegistryClient, subject: str) -> SubjectHistory:
    found: dict[int, dict[str, Any]] = {}
    omitted = 0
    for offset in range(0, HISTORY_READ_MAX, LISTED_MAX):
        page = _listed(client, subjectPrefix=subject, offset=offset)
        found |= {_identity(one)[1]: one for one in page if _is_same(one["subject"], subject)}
        omitted += drop_oldest(found)
        # The list is sorted, and no longer name with this prefix precedes the subject itself.
        if len(page) < LISTED_MAX or (found and not _is_same(page[-1]["subject"], subject)):
            break
    shown: list[ShownVersion] = []
    chars = 0
    for number in sorted(found, reverse=True):
        chars += len(found[number]["schema"])
        shown.append(_shown(client, found[number], is_parsed=chars <= PARSED_CHARS_MAX))
    return SubjectHistory(subject, tuple(reversed(shown)), omitted)


def drop_oldest(found: dict[int, dict[str, Any]]) -> int:
    """Deletes the oldest versions above the limits, and returns their number. The newest two remain."""
    chars, dropped = 0, 0
    for count, number in enumerate(sorted(found, reverse=True), 1):
        chars += len(found[number]["schema"])
        if count > HISTORY_MAX or (chars > HISTORY_CHARS_MAX and count > 2):
            del found[number]
            dropped += 1
    return dropped


def _is_same(listed: str, subject: str) -> bool:
    return split_subject(listed) == split_subject(subject)


def _shown(
    client: RegistryClient, listed: Mapping[str, Any], *, is_parsed: bool = True, with_references: bool = True
) -> ShownVersion:
    _, version, registered = _identity(listed)
    schema, problem = None, ""
    used: frozenset[str] = frozenset()
    if registered.schema_type != "AVRO":
        problem = f"its type is {registered.schema_type}, not Avro"
    elif not is_parsed or len(registered.text) > SCHEMA_CHARS_MAX:
        problem = TOO_LARGE
    else:
        try:
            schema = client.parsed(registered)
            used = frozenset(_used(client, registered, set())) if with_references else used
        except (AvroSchemaError, RegistryError) as error:
            problem = str(error)
    return ShownVersion(
        version,
        registered.schema_id,
        registered.text,
        registered.schema_type,
        registered.references,
        _registered_ms(listed),
        schema,
        problem,
        used,
    )


def _used(client: RegistryClient, schema: RegisteredSchema, seen: set[SubjectVersion]) -> set[str]:
    """Returns the subjects of all references. `client` has cached the versions when it parsed the schema."""
    for one in schema.references:
        name = reference_subject(schema.subject or "", one)
        if (version := SubjectVersion(name, one.version)) not in seen:
            seen.add(version)
            _used(client, client.version(name, one.version), seen)
    return {one.subject for one in seen}


def reference_subject(subject: str, reference: SchemaReference) -> str:
    """Returns the qualified subject of a reference. One without a context means the context of the referring schema."""
    if reference.subject.startswith(":."):
        return reference.subject
    return qualified(split_subject(subject)[0], reference.subject)


def subjects_of(versions: Iterable[ShownVersion]) -> Sequence[str]:
    """Returns the subjects of all references of these versions, sorted."""
    return sorted({subject for one in versions for subject in one.used_subjects})
