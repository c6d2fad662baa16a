"""The source registry's side of replication: requests, responses and their JSON.

A replica sends its position. If that is still the position of the source, nothing has changed. Otherwise the response
has the state of each subject and all settings. The replica then requests the versions of subjects whose state has
changed since its last copy, and the schemas of these versions that it does not have. Each response is one snapshot of
the database. A change therefore costs in proportion to the changed subjects and to the number of subjects, not to their
content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple

from headrace.registry.domain import ConfigEntry, Metadata, Mode, SchemaContent, SchemaId, SchemaReference, StoredSchema
from headrace.registry.errors import InvalidResponse
from headrace.registry.rules import RuleSet
from headrace.registry.storage.cache import SubjectState
from headrace.registry.storage.replication import ContextState, ReplicatedSubject, ReplicatedVersion, ReplicationTables
from headrace.registry.storage.repository import Repository

FORMAT: Final = 1
SUBJECTS_MAX: Final = 500  # per request, because the number of values in a body is limited
SCHEMAS_MAX: Final = 500
SCHEMAS_PER_QUERY: Final = 20  # per query of the database
# Maximum total length of the schemas in a response; a single schema may be longer. The replica requests the omitted
# schemas again.
RESPONSE_CHARS_MAX: Final = 8 * 1024 * 1024


class ReplicationPosition(NamedTuple):
    """Identifies a state of a registry: while the position is the same, nothing has changed.

    Attributes:
        history: number that changes when the database may have returned to an earlier state, such as after a restored
            backup; see `storage.revision`.
        revision: the registry's revision; it only grows within one history.
        changes: the sum of all subjects' revisions. It grows with every added version, which need not change the
            registry's own revision.
    """

    history: int
    revision: int
    changes: int

    @classmethod
    def of(cls, text: str) -> ReplicationPosition:
        """Parses a position from the text that `str` makes of it.

        Raises:
            ValueError: the text is not a position.
        """
        history, revision, changes = map(int, text.split("."))
        return cls(history, revision, changes)

    def __str__(self) -> str:
        return ".".join(map(str, self))


@dataclass(frozen=True, slots=True)
class ReplicationRequest:
    """A replica's request to the source registry: for the changes since a position, for subjects and for schemas.

    Attributes:
        seen: the position of the replica's last copy, as text; "" before the first copy of this process, and in
            requests for subjects or schemas. If it differs from the source's position, the response has all states and
            settings.
        subjects: names of the subjects to return, with all their versions.
        ids: the ids of requested schemas, by context; ascending, so that the replica can continue a partial response.
    """

    seen: str = ""
    subjects: tuple[str, ...] = ()
    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicatedSettings:
    """The settings that a replica copies: configurations and modes by scope (None is the default context), and the
    contexts."""

    configs: Mapping[str | None, ConfigEntry] = field(default_factory=dict)
    modes: Mapping[str | None, Mode] = field(default_factory=dict)
    contexts: tuple[ContextState, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicatedSchema:
    """A schema and its lookup key, which is the same for schemas that differ only in spelling."""

    schema: StoredSchema
    lookup_key: bytes


@dataclass(frozen=True, slots=True)
class ReplicationResponse:
    """The source registry's response to a replica.

    Attributes:
        source: the identity of the source registry.
        position: identifies the current state of the source registry.
        states: the id and revision of every subject, by name; None if nothing has changed since the position in the
            request.
        settings: all settings; None if nothing has changed since the position in the request.
        subjects: the requested subjects with their versions; missing ones are omitted.
        schemas: the requested schemas, as many as the maximum length of a response permits; missing ones are omitted.
    """

    source: str
    position: ReplicationPosition
    states: Mapping[str, SubjectState] | None = None
    settings: ReplicatedSettings | None = None
    subjects: Mapping[str, ReplicatedSubject] = field(default_factory=dict)
    schemas: tuple[ReplicatedSchema, ...] = ()


def build_response(request: ReplicationRequest, repository: Repository) -> ReplicationResponse:
    tables = ReplicationTables(repository)
    revision = repository.revision()
    position = ReplicationPosition(revision.history, revision.number, tables.changes())
    is_current = str(position) == request.seen
    return ReplicationResponse(
        repository.identity(),
        position,
        None if is_current else tables.subject_states(),
        None if is_current else settings_of(repository),
        tables.replicated_subjects(request.subjects),
        tuple(_schemas(request, repository)),
    )


def settings_of(repository: Repository) -> ReplicatedSettings:
    configs = repository.configs(repository.config_scopes())
    return ReplicatedSettings(
        configs, repository.modes(repository.mode_scopes()), tuple(ReplicationTables(repository).context_states())
    )


def _schemas(request: ReplicationRequest, repository: Repository) -> Iterator[ReplicatedSchema]:
    """Yields the requested schemas, context by context and sorted by id within 20 requested ids, and stops at the
    maximum length of a response. They are read in small batches, because each may have megabytes.

    Args:
        request: its `ids` are the schemas.
        repository: the database of the source registry.
    """
    characters = 0
    for context, ids in request.ids.items():
        for start in range(0, len(ids), SCHEMAS_PER_QUERY):
            found = repository.schemas_by_id(context, ids[start : start + SCHEMAS_PER_QUERY])
            keys = ReplicationTables(repository).lookup_keys(found)
            for schema in found:
                characters += len(schema.content.text)
                if characters > RESPONSE_CHARS_MAX and characters > len(schema.content.text):
                    return
                yield ReplicatedSchema(schema, keys[schema.row_key])


def request_json(request: ReplicationRequest) -> dict[str, Any]:
    return {
        "seen": request.seen,
        "subjects": list(request.subjects),
        "ids": {context: list(ids) for context, ids in request.ids.items()},
    }


def response_json(response: ReplicationResponse) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "source": response.source,
        "position": str(response.position),
        "states": None
        if response.states is None
        else {name: _state_json(state) for name, state in response.states.items()},
        "settings": None if response.settings is None else _settings_json(response.settings),
        "subjects": {
            name: [_state_json(subject.state), *(_version_json(version) for version in subject.versions)]
            for name, subject in response.subjects.items()
        },
        "schemas": [_schema_json(item) for item in response.schemas],
    }


def parse_response(body: Any, url: str) -> ReplicationResponse:
    """Parses the JSON body of the source registry's response. `url` is the source, for messages.

    Raises:
        InvalidResponse: the response is malformed or has the format of another release.
    """
    try:
        number = body["format"]
        if number != FORMAT:
            raise InvalidResponse(
                f"the source registry {url} sends replication format {number}, but this replica reads format {FORMAT}; "
                "run the same release of headrace in both"
            )
        return ReplicationResponse(
            str(body["source"]),
            ReplicationPosition.of(body["position"]),
            None if body["states"] is None else {str(name): _state(item) for name, item in body["states"].items()},
            None if body["settings"] is None else _settings(body["settings"]),
            {
                str(name): ReplicatedSubject(_state(state), tuple(_version(item) for item in versions))
                for name, (state, *versions) in body["subjects"].items()
            },
            tuple(_replicated_schema(item) for item in body["schemas"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidResponse(
            f"the response of {url} to a replica is not that of a Headrace registry: {error}; check the URL"
        ) from error


def _state_json(state: SubjectState) -> list[int]:
    return [state.subject_id, state.revision]


def _state(item: Any) -> SubjectState:
    subject_id, revision = map(int, item)
    return SubjectState(subject_id, revision)


def _version_json(version: ReplicatedVersion) -> list[Any]:
    return [version.version, version.schema_id, version.fingerprint.hex(), version.created_ms, version.deleted]


def _version(item: Any) -> ReplicatedVersion:
    number, schema_id, fingerprint, created_ms, deleted = item
    return ReplicatedVersion(int(number), int(schema_id), bytes.fromhex(fingerprint), int(created_ms), bool(deleted))


def _schema_json(response: ReplicatedSchema) -> dict[str, Any]:
    schema, content = response.schema, response.schema.content
    return {
        "context": schema.context,
        "id": schema.schema_id,
        "created_ms": schema.created_ms,
        "lookup_key": response.lookup_key.hex(),
        "text": content.text,
        "references": [[item.name, item.subject, item.version] for item in content.references],
        "metadata": None if content.metadata is None else content.metadata.to_json(),
        "rule_set": None if content.rule_set is None else content.rule_set.to_json(),
    }


def _replicated_schema(item: Mapping[str, Any]) -> ReplicatedSchema:
    content = SchemaContent(
        str(item["text"]),
        tuple(SchemaReference(str(name), str(subject), int(number)) for name, subject, number in item["references"]),
        None if item["metadata"] is None else Metadata.of(**item["metadata"]),
        None if item["rule_set"] is None else RuleSet.of(item["rule_set"]),
    )
    schema = StoredSchema(SchemaId(int(item["id"])), content, int(item["created_ms"]), context=str(item["context"]))
    return ReplicatedSchema(schema, bytes.fromhex(item["lookup_key"]))


def _settings_json(settings: ReplicatedSettings) -> dict[str, Any]:
    # Lists of pairs, because None is a scope too and JSON keys are strings.
    return {
        "configs": [[scope, _config_json(entry)] for scope, entry in settings.configs.items()],
        "modes": [[scope, mode.value] for scope, mode in settings.modes.items()],
        "contexts": [asdict(context) for context in settings.contexts],
    }


def _settings(item: Mapping[str, Any]) -> ReplicatedSettings:
    return ReplicatedSettings(
        {scope: _config(values) for scope, values in item["configs"]},
        {scope: Mode(mode) for scope, mode in item["modes"]},
        tuple(ContextState(**context) for context in item["contexts"]),
    )


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "default_metadata": lambda value: Metadata.of(**value),
    "override_metadata": lambda value: Metadata.of(**value),
    "default_rule_set": RuleSet.of,
    "override_rule_set": RuleSet.of,
}
"""Parsers of the configuration keys with object values."""


def _config_json(entry: ConfigEntry) -> dict[str, Any]:
    values = {key.name: getattr(entry, key.name) for key in fields(entry)}
    return {key: value.to_json() if key in _READ else value for key, value in values.items() if value is not None}


def _config(values: Mapping[str, Any]) -> ConfigEntry:
    return ConfigEntry(**{key: _READ[key](value) if key in _READ else value for key, value in values.items()})
