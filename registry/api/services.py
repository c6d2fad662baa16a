"""What the views work with: the services on one database, and in which form the present client wants schemas."""

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
from headrace.registry.service.lookup import Lookup
from headrace.registry.service.modes import Modes
from headrace.registry.service.presentation import Presentation, Shown, Wish
from headrace.registry.service.registration import Registration
from headrace.registry.service.tagging import Tagging
from headrace.registry.service.texts import SchemaTexts
from headrace.registry.service.visibility import RestrictedLookup
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
    profile: Profile
    keeps_rules: bool

    @classmethod
    def of(
        cls,
        database: Database,
        default_level: CompatibilityLevel,
        now_ms: Callable[[], int],
        version: str,
        profile: Profile = Profile.FULL,
        keeps_rules: bool = True,
        mutable_modes: bool = True,
    ) -> Services:
        texts = SchemaTexts()
        configuration = Configuration(database, default_level)
        compatibility = Compatibility(database, texts, configuration)
        registration = Registration(database, texts, configuration, compatibility, now_ms)
        lookup = Lookup(database, texts, configuration)
        return cls(
            database,
            registration,
            lookup,
            compatibility,
            Deletion(database),
            configuration,
            Modes(database, mutable=mutable_modes),
            Presentation(database, texts),
            Tagging(lookup, registration),
            now_ms,
            version,
            profile,
            keeps_rules,
        )


def services_of(app: Flask) -> Services:
    found = app.extensions["registry"]
    assert isinstance(found, Services)
    return found


def services() -> Services:
    """The services of the application that answers the present request."""
    found = services_of(current_app)
    if not is_restricted():
        return found
    lookup = RestrictedLookup(found.lookup, may_read)
    return replace(found, lookup=lookup, tagging=Tagging(lookup, found.registration))


ACCEPT_UNKNOWN_HEADER = "Confluent-Accept-Unknown-Properties"


def profile() -> Profile:
    """The configured one; clients that say that they ignore keys which they do not know get all that there are."""
    if request.headers.get(ACCEPT_UNKNOWN_HEADER, "").lower() == "true":
        return Profile.FULL
    return services().profile


def as_shown(schema: StoredSchema) -> Shown:
    """What is shown of a schema in place of what is stored, as the query asks."""
    query = request.args
    # confluent-kafka's Python client writes parameters with underscores.
    reference_format = query.get("referenceFormat", query.get("reference_format", ""))
    tags = tuple(query.getlist("findTags") or query.getlist("find_tags"))
    return services().presentation.shown(schema, Wish(query.get("format", ""), reference_format, tags))


def shown_text(schema: StoredSchema) -> str:
    text = as_shown(schema).text
    return schema.content.text if text is None else text
