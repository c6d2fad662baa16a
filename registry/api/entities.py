"""Response bodies: which keys each has in which release's way of speaking, in the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from headrace.registry.domain import SCHEMA_TYPE, ConfigEntry, Metadata, StoredSchema, StoredVersion
from headrace.registry.service.presentation import PLAIN, Shown
from headrace.registry.tags import TaggedEntity


class Profile(IntEnum):
    """The release of the Confluent Schema Registry whose bodies are answered.

    Clients older than 7.0 fail on keys that they do not know.
    """

    LEAN = 7
    FULL = 8


LEAN, FULL = Profile.LEAN, Profile.FULL

VERSION_KEYS: Final = {
    "subject": LEAN,
    "version": LEAN,
    "id": LEAN,
    "guid": FULL,
    "schemaType": FULL,
    "references": LEAN,
    "metadata": LEAN,
    "ruleSet": LEAN,
    "schema": LEAN,
    "schemaTags": LEAN,
    "ts": FULL,
    "deleted": FULL,
}
"""Schema: a schema as a version of a subject. Each key with the first profile that has it."""

LISTED_KEYS: Final = {**VERSION_KEYS, "aliases": LEAN}
"""ExtendedSchema: the same in the list of all schemas."""

SCHEMA_KEYS: Final = {
    "subject": LEAN,
    "version": LEAN,
    "guid": FULL,
    "schemaType": FULL,
    "schema": LEAN,
    "references": LEAN,
    "metadata": LEAN,
    "ruleSet": LEAN,
    "schemaTags": LEAN,
    "maxId": LEAN,
    "ts": FULL,
    "deleted": FULL,
}
"""SchemaString: a schema by id or guid; `subject` and `version` where a subject was asked for."""

REGISTERED_KEYS: Final = {
    "id": LEAN,
    "version": FULL,
    "guid": FULL,
    "schemaType": FULL,
    "references": FULL,
    "metadata": FULL,
    "ruleSet": FULL,
    "schema": FULL,
    "ts": FULL,
    "deleted": FULL,
}
"""What registering answers."""

_CONFIG_FIELDS: Final = {
    "alias": "alias",
    "aliasForDeks": "alias_for_deks",
    "normalize": "normalize",
    "validateFields": "validate_fields",
    "validateNewSchemas": "validate_new_schemas",
    "validateRules": "validate_rules",
    "compatibilityLevel": "compatibility",
    "compatibilityPolicy": "compatibility_policy",
    "compatibilityGroup": "compatibility_group",
    "defaultMetadata": "default_metadata",
    "overrideMetadata": "override_metadata",
    "defaultRuleSet": "default_rule_set",
    "overrideRuleSet": "override_rule_set",
}
"""Config: keys of an answer and what they show of a `ConfigEntry`."""

CONFIG_KEYS: Final = {
    "compatibility" if key == "compatibilityLevel" else key: name for key, name in _CONFIG_FIELDS.items()
}
"""The same for the request that changes a configuration, and its answer."""


def version_entity(stored: StoredVersion, profile: Profile, as_shown: Shown = PLAIN) -> dict[str, Any]:
    """A version of a subject."""
    values = {
        "subject": stored.subject,
        "version": stored.version,
        "id": stored.schema.schema_id,
        **_content(stored.schema, as_shown),
        "schemaTags": _tags_entity(as_shown.tagged),
        "ts": stored.created_ms,
        "deleted": stored.deleted,
    }
    return shown(values, VERSION_KEYS, profile)


def listed_entity(stored: StoredVersion, profile: Profile, *, aliases: Sequence[str] = ()) -> dict[str, Any]:
    """A version in the list of all schemas, with the subjects that stand for its own."""
    return shown({**version_entity(stored, profile), "aliases": list(aliases)}, LISTED_KEYS, profile)


def schema_entity(
    schema: StoredSchema,
    profile: Profile,
    as_shown: Shown = PLAIN,
    *,
    used: StoredVersion | None = None,
    schema_id_max: int | None = None,
) -> dict[str, Any]:
    """A schema; `used` is the version that uses it under the subject that was asked for."""
    values = {
        "subject": None if used is None else used.subject,
        "version": None if used is None else used.version,
        **_content(schema, as_shown),
        "schemaTags": _tags_entity(as_shown.tagged),
        "maxId": schema_id_max,
        "ts": schema.created_ms if used is None else used.created_ms,
        "deleted": schema.deleted if used is None else used.deleted,
    }
    return shown(values, SCHEMA_KEYS, profile)


def registered_entity(stored: StoredVersion, profile: Profile, as_shown: Shown = PLAIN) -> dict[str, Any]:
    """What registering answers about the version that holds the schema."""
    values = {
        "id": stored.schema.schema_id,
        "version": stored.version,
        **_content(stored.schema, as_shown),
        "ts": stored.created_ms,
        "deleted": stored.deleted,
    }
    return shown(values, REGISTERED_KEYS, profile)


def config_entity(entry: ConfigEntry) -> dict[str, Any]:
    return _without_empty({key: _plain(getattr(entry, name)) for key, name in _CONFIG_FIELDS.items()})


def changed_config_entity(entry: ConfigEntry) -> dict[str, Any]:
    """What a change of configuration answers; only null is left out."""
    values = {key: _plain(getattr(entry, name)) for key, name in CONFIG_KEYS.items()}
    return {key: value for key, value in values.items() if value is not None}


def metadata_entity(metadata: Metadata | None) -> dict[str, Any]:
    if metadata is None:
        return {}
    tags = {path: list(names) for path, names in metadata.tags}
    return _without_empty(
        {"tags": tags, "properties": dict(metadata.properties), "sensitive": list(metadata.sensitive)}
    )


def _tags_entity(tagged: Iterable[TaggedEntity]) -> list[dict[str, Any]]:
    """SchemaTags, as in requests that change them."""
    return [
        {"schemaEntity": {"entityPath": item.path, "entityType": item.kind.value}, "tags": list(item.tags)}
        for item in tagged
    ]


def shown(values: Mapping[str, Any], keys: Mapping[str, Profile], profile: Profile) -> dict[str, Any]:
    """The values that a profile has keys for, without those that say nothing, in the order of `keys`."""
    return _without_empty({key: values.get(key) for key, since in keys.items() if since <= profile})


def _content(schema: StoredSchema, as_shown: Shown) -> dict[str, Any]:
    content = schema.content
    references = content.references if as_shown.references is None else as_shown.references
    return {
        "guid": content.guid,
        "schemaType": SCHEMA_TYPE,
        "references": [{"name": item.name, "subject": item.subject, "version": item.version} for item in references],
        "metadata": metadata_entity(content.metadata),
        "ruleSet": {} if content.rule_set is None else content.rule_set.to_json(),
        "schema": content.text if as_shown.text is None else as_shown.text,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Metadata):
        return metadata_entity(value)
    return value.to_json() if hasattr(value, "to_json") else value


def _without_empty(entity: Mapping[str, Any]) -> dict[str, Any]:
    """Without null, "", [] and {}; false and 0 stay."""
    return {key: value for key, value in entity.items() if value is not None and value not in ("", [], {})}
