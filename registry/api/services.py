"""What the views work with: the services on one database, and the answers they keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app

from compat.levels import CompatibilityLevel
from registry.api.answer_cache import AnswerCache
from registry.api.entities import Profile
from registry.service.compatibility import Compatibility
from registry.service.configuration import Configuration
from registry.service.deletion import Deletion
from registry.service.lookup import Lookup
from registry.service.modes import Modes
from registry.service.presentation import Presentation
from registry.service.registration import Registration
from registry.service.tagging import Tagging
from registry.service.texts import SchemaTexts
from registry.storage.database import Database


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
    answers: AnswerCache
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
            Modes(database),
            Presentation(database, texts),
            Tagging(lookup, registration),
            AnswerCache(),
            version,
            profile,
            keeps_rules,
        )


def services() -> Services:
    """The services of the application that answers the present request."""
    found = current_app.extensions["registry"]
    assert isinstance(found, Services)
    return found
