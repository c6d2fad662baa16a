"""The services of the application, as the views of the current request use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flask import Flask, current_app, request

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.api.access import is_restricted, may_read
from headrace.registry.api.entities import Profile
from headrace.registry.domain import StoredSchema
from headrace.registry.service.compatibility import Compatibility
from headrace.registry.service.configuration import Configuration
from headrace.registry.service.deletion import Deletion
from headrace.registry.service.lookup import Lookup, RestrictedLookup
from headrace.registry.service.modes import ModeInheritance, Modes
from headrace.registry.service.presentation import Presentation, PresentationOptions, PresentedSchema
from headrace.registry.service.registration import Registration
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.service.tagging import Tagging
from headrace.registry.storage.database import Database


@dataclass(frozen=True, slots=True)
class Services:
    database: Database
    registration: Registration
    lookup: Lookup
    compatibility: Compatibility
    deletion: Deletion
    configuration: Configuration
    modes: Modes
    presentation: Presentation
    tagging: Tagging
    now_ms: Callable[[], int]
    version: str
    commit: str
    profile: Profile
    stores_rules: bool

    @classmethod
    def of(
        cls,
        database: Database,
        default_level: CompatibilityLevel,
        now_ms: Callable[[], int],
        version: str,
        commit: str = "",
        profile: Profile = Profile.FULL,
        stores_rules: bool = True,
        mutable_modes: bool = True,
    ) -> Services:
        parser = SchemaParser()
        inheritance = ModeInheritance(override_wins=profile is Profile.LEAN)
        configuration = Configuration(database, default_level, inheritance)
        compatibility = Compatibility(database, parser, configuration)
        registration = Registration(database, parser, configuration, compatibility, now_ms)
        lookup = Lookup(database, parser, configuration)
        return cls(
            database,
            registration,
            lookup,
            compatibility,
            Deletion(database, inheritance),
            configuration,
            Modes(database, inheritance, mutable=mutable_modes),
            Presentation(database, parser),
            Tagging(lookup, registration),
            now_ms,
            version,
            commit,
            profile,
            stores_rules,
        )


def services_of(app: Flask) -> Services:
    found = app.extensions["registry"]
    assert isinstance(found, Services)
    return found


def services() -> Services:
    """Returns the operations of the current application, such as registration and lookup. Lookups are restricted to the
    subjects that the sender of the request may read."""
    found = services_of(current_app)
    if not is_restricted():
        return found
    lookup = RestrictedLookup(found.lookup, may_read)
    return replace(found, lookup=lookup, tagging=Tagging(lookup, found.registration))


ACCEPT_UNKNOWN_HEADER = "Confluent-Accept-Unknown-Properties"


def profile() -> Profile:
    """Returns the profile, which selects the keys of response bodies: the configured one, or all keys if the client
    declares by a header that it ignores unknown keys."""
    if request.headers.get(ACCEPT_UNKNOWN_HEADER, "").lower() == "true":
        return Profile.FULL
    return services().profile


def as_shown(schema: StoredSchema) -> PresentedSchema:
    """Returns a schema's text, references and tags in the format that the query of the current request selects, such as
    `format=resolved`. In the result, None as text or references means that the response has them as stored."""
    query = request.args
    # confluent-kafka's Python client spells the parameters with underscores.
    reference_format = query.get("referenceFormat", query.get("reference_format", ""))
    tags = tuple(query.getlist("findTags") or query.getlist("find_tags"))
    return services().presentation.present(schema, PresentationOptions(query.get("format", ""), reference_format, tags))


def shown_text(schema: StoredSchema) -> str:
    text = as_shown(schema).text
    return schema.content.text if text is None else text
