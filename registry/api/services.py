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
from registry.service.registration import Registration
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
    answers: AnswerCache
    version: str
    profile: Profile

    @classmethod
    def of(
        cls,
        database: Database,
        default_level: CompatibilityLevel,
        now_ms: Callable[[], int],
        version: str,
        profile: Profile = Profile.FULL,
    ) -> Services:
        texts = SchemaTexts()
        configuration = Configuration(database, default_level)
        compatibility = Compatibility(database, texts, configuration)
        return cls(
            database,
            Registration(database, texts, configuration, compatibility, now_ms),
            Lookup(database, texts, configuration),
            compatibility,
            Deletion(database),
            configuration,
            Modes(database),
            AnswerCache(),
            version,
            profile,
        )


def services() -> Services:
    """The services of the application that answers the present request."""
    found = current_app.extensions["registry"]
    assert isinstance(found, Services)
    return found
