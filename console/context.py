"""The values that all pages share, and how a page gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import current_app, g

from headrace.console.access import ConsoleAccess, Viewer
from headrace.console.actions.storage import ActionStore
from headrace.console.audit_reader import AuditReader
from headrace.console.broker_reader import BrokerReader
from headrace.console.commit_reader import CommitReader
from headrace.console.registry_reader import RegistryReader
from headrace.console.sessions import SessionStore
from headrace.console.sources import SourceReader
from headrace.settings import Settings

EXTENSION = "headrace-console"


@dataclass(frozen=True, slots=True)
class ConsoleContext:
    """The settings and readers that pages use. `now_ms` is the clock, in milliseconds since 1970. `origins` has the
    sources of the settings that are set explicitly, by dotted key. `started_ms` is the start of this process."""

    settings: Settings
    access: ConsoleAccess
    sessions: SessionStore
    actions: ActionStore
    sources: SourceReader
    audit: AuditReader
    commits: CommitReader
    registry: RegistryReader
    brokers: BrokerReader
    now_ms: Callable[[], int]
    version: str
    origins: Mapping[str, str]
    started_ms: int


def console() -> ConsoleContext:
    """Returns the context of the application that handles this request."""
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, ConsoleContext)
    return found


def viewer() -> Viewer:
    """Returns the sender of this request, which `security` has checked."""
    found = g.viewer
    assert isinstance(found, Viewer)
    return found
