"""Notes about time fields that cannot be used, so that rows are filed by another time than expected. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.avro_schema import AvroSchemaError, find_time_fields, parse_schema
from headrace.avro_schema.message_time import TIME_PROPERTY, unusable_time_fields
from headrace.loader.policy import TopicPolicy

_TYPES = "a long in milliseconds, a logical type, or ISO 8601 text with a zone"


def time_field_note(texts: Mapping[int, str], newest_id: int | None, time_property: str, policy: TopicPolicy) -> str:
    """Returns the reason why a topic's rows are not filed by the time field that its subject or the settings name; ""
    if they are, or if no such field is expected.

    Only the newest version of the subject is checked: a change of an older one would need a new version too. The
    default of `loader.time_fields` is a guess: a topic without any of these fields gets no note, a topic with a field
    of an unsuitable type gets one.

    Args:
        texts: schema texts by id.
        newest_id: schema id of the newest version, None if unknown.
        time_property: the subject's metadata property `headrace.time`, or "".
        policy: the topic's settings.
    """
    text = texts.get(newest_id) if newest_id is not None else None
    try:
        schema = parse_schema(text, strict=False) if text is not None else None
    except AvroSchemaError:
        return ""
    if schema is None:
        return ""
    fields = find_time_fields(schema, time_property, policy.time_fields)
    filed = f"rows are filed by {f'the field {fields[0].source}' if fields else 'the time of the record'}"
    for found in unusable_time_fields(schema, (time_property,) if time_property else ()):
        return (
            f"{TIME_PROPERTY} names the field {found.name}, which {found.reason}: {filed} instead; correct the "
            f"property in the next version of the schema, or give the field one of these types: {_TYPES}"
        )
    if fields:
        return ""
    unusable = unusable_time_fields(schema, policy.time_fields)
    existing = next((found for found in unusable if found.exists), None)
    if existing is not None:
        return (
            f"the time field {existing.name} {existing.reason}: {filed}; give it one of these types: {_TYPES}; or name "
            f"another field in the subject's metadata property {TIME_PROPERTY}"
        )
    if policy.are_time_fields_set and unusable:
        names = ", ".join(f"{found.name} {found.reason}" for found in unusable)
        return f"no field of loader.time_fields is in the schema ({names}): {filed}; correct the setting"
    return ""
