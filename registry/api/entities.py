"""Response bodies: the keys of each, in the order in which they are written, and the profile that includes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from headrace.registry.domain import SCHEMA_TYPE, ConfigEntry, Metadata, StoredSchema, StoredVersion
from headrace.registry.service.presentation import PLAIN, PresentedSchema
from headrace.registry.tags import TaggedEntity


class Profile(IntEnum):
    """The release of the Confluent Schema Registry to imitate in response bodies, error codes and modes.

    Clients older than 7.0 fail on unknown keys in bodies.
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
"""Keys of Confluent's Schema, which describes a version of a subject. Each has the lowest profile that includes it."""

LISTED_KEYS: Final = {**VERSION_KEYS, "aliases": LEAN}
"""Keys of Confluent's ExtendedSchema, which describes a version in the list of all schemas."""

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
"""Keys of Confluent's SchemaString, the response to a request for a schema by id or guid. It has `subject` and
`version` if the request names a subject that has the schema."""

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
"""Keys of the response to a registration."""

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
"""Keys of Confluent's Config, the response to a request for a configuration, and their attributes of `ConfigEntry`."""

CONFIG_KEYS: Final = {
    "compatibility" if key == "compatibilityLevel" else key: name for key, name in _CONFIG_FIELDS.items()
}
"""Keys of a request that changes a configuration, and of its response, and their attributes of `ConfigEntry`."""


def version_entity(stored: StoredVersion, profile: Profile, as_shown: PresentedSchema = PLAIN) -> dict[str, Any]:
    """Returns the response body for a version of a subject.

    Args:
        stored: the version.
        profile: selects the keys of the body.
        as_shown: the schema in the format that the client requested; by default as stored.
    """
    values = {
        "subject": stored.subject,
        "version": stored.version,
        "id": stored.schema.schema_id,
        **_content(stored.schema, as_shown),
        "schemaTags": _tags_entity(as_shown.tagged),
        "ts": stored.created_ms,
        "deleted": stored.deleted,
    }
    return select_keys(values, VERSION_KEYS, profile)


def listed_entity(stored: StoredVersion, profile: Profile, *, aliases: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the response body for a version in the list of all schemas.

    Args:
        stored: the version.
        profile: selects the keys of the body.
        aliases: the aliases of the version's subject.
    """
    return select_keys({**version_entity(stored, profile), "aliases": list(aliases)}, LISTED_KEYS, profile)


def schema_entity(
    schema: StoredSchema,
    profile: Profile,
    as_shown: PresentedSchema = PLAIN,
    *,
    used: StoredVersion | None = None,
    schema_id_max: int | None = None,
) -> dict[str, Any]:
    """Returns the response body for a schema by id or guid.

    Args:
        schema: the schema.
        profile: selects the keys of the body.
        as_shown: the schema in the format that the client requested.
        used: the version of the requested subject that has the schema; None if no subject was requested or it has none.
        schema_id_max: the highest id of the context, if it was requested.
    """
    values = {
        "subject": None if used is None else used.subject,
        "version": None if used is None else used.version,
        **_content(schema, as_shown),
        "schemaTags": _tags_entity(as_shown.tagged),
        "maxId": schema_id_max,
        "ts": schema.created_ms if used is None else used.created_ms,
        "deleted": schema.deleted if used is None else used.deleted,
    }
    return select_keys(values, SCHEMA_KEYS, profile)


def registered_entity(stored: StoredVersion, profile: Profile, as_shown: PresentedSchema = PLAIN) -> dict[str, Any]:
    """Returns the response body for a registration.

    Args:
        stored: the version with the schema.
        profile: selects the keys of the body.
        as_shown: the schema in the format that the client requested; by default as stored.
    """
    values = {
        "id": stored.schema.schema_id,
        "version": stored.version,
        **_content(stored.schema, as_shown),
        "ts": stored.created_ms,
        "deleted": stored.deleted,
    }
    return select_keys(values, REGISTERED_KEYS, profile)


def config_entity(entry: ConfigEntry) -> dict[str, Any]:
    return _without_empty({key: _plain(getattr(entry, name)) for key, name in _CONFIG_FIELDS.items()})


def changed_config_entity(entry: ConfigEntry) -> dict[str, Any]:
    """Returns the response body for a change of configuration: the values of `entry`. Unlike other bodies it includes
    empty values, except null."""
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
    """Returns tagged records and fields as JSON objects in the format of Confluent's SchemaTags. Requests that change
    tags have the same format."""
    return [
        {"schemaEntity": {"entityPath": item.path, "entityType": item.kind.value}, "tags": list(item.tags)}
        for item in tagged
    ]


def select_keys(values: Mapping[str, Any], keys: Mapping[str, Profile], profile: Profile) -> dict[str, Any]:
    """Returns the key-value pairs of a response body: the keys that a profile includes, in the order of `keys`, without
    empty values.

    Args:
        values: the values of all keys.
        keys: the keys, and the lowest profile that includes each.
        profile: the profile of the response.
    """
    return _without_empty({key: values.get(key) for key, lowest_profile in keys.items() if lowest_profile <= profile})


def _content(schema: StoredSchema, as_shown: PresentedSchema) -> dict[str, Any]:
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
    """Returns a JSON object without the keys whose value is null, "", [] or {}; values false and 0 remain."""
    return {key: value for key, value in entity.items() if value is not None and value not in ("", [], {})}
