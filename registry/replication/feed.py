"""What a registry tells those that follow it: a question, its answer, and both as JSON.

A follower asks with the position that it has seen. Where that is still the registry's, there is no more to tell; else
it gets the state of each subject and all settings, asks for the versions of those subjects whose state is another than
it knows, and for the schemas that it lacks among theirs. Each answer is one view of the database. So what a change
costs goes with the subjects that it changed, and with the number of subjects, not with what they hold.
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
SUBJECTS_MAX: Final = 500  # of a question, since the values of a body are limited
SCHEMAS_MAX: Final = 500
SCHEMAS_PER_QUERY: Final = 20  # of them, from the database
RESPONSE_CHARS_MAX: Final = 8 * 1024 * 1024  # of the schemas in an answer, or one; the others are asked for again


class ReplicationPosition(NamedTuple):
    """Equal as long as nothing has changed. Within a history of the database both numbers only grow."""

    history: int
    revision: int
    changes: int

    @classmethod
    def of(cls, text: str) -> ReplicationPosition:
        """What `str` of it gave; `ValueError` for what that cannot have given."""
        history, revision, changes = map(int, text.split("."))
        return cls(history, revision, changes)

    def __str__(self) -> str:
        return ".".join(map(str, self))


@dataclass(frozen=True, slots=True)
class ReplicationRequest:
    """`seen` is a position as text, which may be of another registry; `ids` are those of schemas, by context."""

    seen: str = ""
    subjects: tuple[str, ...] = ()
    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicatedSettings:
    """What is configured and set, by scope (None: all of the default context), and the contexts."""

    configs: Mapping[str | None, ConfigEntry] = field(default_factory=dict)
    modes: Mapping[str | None, Mode] = field(default_factory=dict)
    contexts: tuple[ContextState, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicatedSchema:
    """A schema with the key by which equal ones that are written differently find each other."""

    schema: StoredSchema
    lookup_key: bytes


@dataclass(frozen=True, slots=True)
class ReplicationResponse:
    """The answer to a question. `states` and `settings` are None when nothing has changed since what was seen."""

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
    is_seen = str(position) == request.seen
    return ReplicationResponse(
        repository.identity(),
        position,
        None if is_seen else tables.subject_states(),
        None if is_seen else settings_of(repository),
        tables.replicated_subjects(request.subjects),
        tuple(_schemas(request, repository)),
    )


def settings_of(repository: Repository) -> ReplicatedSettings:
    configs = repository.configs(repository.config_scopes())
    return ReplicatedSettings(
        configs, repository.modes(repository.mode_scopes()), tuple(ReplicationTables(repository).context_states())
    )


def _schemas(request: ReplicationRequest, repository: Repository) -> Iterator[ReplicatedSchema]:
    """The first ones of those asked for, read a few at a time, since each may have megabytes."""
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


def parse_response(answer: Any, url: str) -> ReplicationResponse:
    """
    Raises:
        InvalidResponse: it is not what `response_json` gives, or of another release.
    """
    try:
        number = answer["format"]
        if number != FORMAT:
            raise InvalidResponse(
                f"{url} tells its followers in format {number}, expected {FORMAT}: bring both to one release"
            )
        return ReplicationResponse(
            str(answer["source"]),
            ReplicationPosition.of(answer["position"]),
            None if answer["states"] is None else {str(name): _state(item) for name, item in answer["states"].items()},
            None if answer["settings"] is None else _settings(answer["settings"]),
            {
                str(name): ReplicatedSubject(_state(state), tuple(_version(item) for item in versions))
                for name, (state, *versions) in answer["subjects"].items()
            },
            tuple(_told_schema(item) for item in answer["schemas"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidResponse(
            f"the answer of {url} to a follower is not one of a Headrace registry: {error}"
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


def _told_schema(item: Mapping[str, Any]) -> ReplicatedSchema:
    content = SchemaContent(
        str(item["text"]),
        tuple(SchemaReference(str(name), str(subject), int(number)) for name, subject, number in item["references"]),
        None if item["metadata"] is None else Metadata.of(**item["metadata"]),
        None if item["rule_set"] is None else RuleSet.of(item["rule_set"]),
    )
    schema = StoredSchema(SchemaId(int(item["id"])), content, int(item["created_ms"]), context=str(item["context"]))
    return ReplicatedSchema(schema, bytes.fromhex(item["lookup_key"]))


def _settings_json(settings: ReplicatedSettings) -> dict[str, Any]:
    # Lists of pairs, since None is a scope too.
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
"""Keys of a configuration that are no plain values."""


def _config_json(entry: ConfigEntry) -> dict[str, Any]:
    values = {key.name: getattr(entry, key.name) for key in fields(entry)}
    return {key: value.to_json() if key in _READ else value for key, value in values.items() if value is not None}


def _config(values: Mapping[str, Any]) -> ConfigEntry:
    return ConfigEntry(**{key: _READ[key](value) if key in _READ else value for key, value in values.items()})
