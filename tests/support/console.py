"""A console in the process, and its users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from headrace.console.actions.storage import ActionStore
from headrace.console.app import create_app
from headrace.console.database import ConsoleDatabase
from headrace.console.server import access_of
from headrace.console.sessions import SessionStore
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.settings import Address, ConsoleSettings, Settings

NOW_MS = 1_795_000_200_000  # 2026-11-18 10:30 UTC
PASSWORD = "correct horse"
CHEAP = Cost(log2_n=4, r=1, p=1)
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class ConsoleWorld:
    """A console whose clock and users file a test changes."""

    app: Flask
    sessions: SessionStore
    actions: ActionStore
    users_path: Path
    now_ms: int = NOW_MS

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def signed_in(self, user: str) -> FlaskClient:
        client = self.client()
        form = {"user": user, "password": PASSWORD}
        response = client.post("/sign-in", data=form, headers=SAME_ORIGIN)
        assert response.status_code == 303, response.text
        return client


def user_line(name: str, password: str = PASSWORD) -> str:
    return f"user {name} {PasswordHash.of(password, name.encode().ljust(16, b'.'), CHEAP)}\n"


def console_world(
    directory: Path,
    users: str = "",
    settings: Settings | None = None,
    origins: Mapping[str, str] | None = None,
    **own: Any,
) -> ConsoleWorld:
    """Creates a console on a data directory.

    Args:
        users: the content of the users file; "" for a console without users.
        settings: further settings.
        origins: the sources of settings.
        own: values of `ConsoleSettings`.
    """
    path = directory / "users"
    path.write_text(users)
    given = settings or Settings()
    chosen = replace(
        given,
        data_dir=directory,
        console=ConsoleSettings(**{"listen": Address("127.0.0.1", 8080), **own}),
        registry=replace(given.registry, users=str(path) if users else ""),
    )
    database = ConsoleDatabase.of_settings(chosen)
    sessions, actions = SessionStore(database), ActionStore(database)
    access = access_of(chosen, RegistryUsersFile(path) if users else None)
    world = ConsoleWorld(Flask("none"), sessions, actions, path)
    world.app = create_app(
        chosen, access, sessions, actions, version="1.2.3", origins=origins, now_ms=lambda: world.now_ms
    )
    return world


class _Events(HTMLParser):
    """Collects the texts of the items in lists of the class `events`."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._is_inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "ol" and "events" in (dict(attributes).get("class") or "").split():
            self._is_inside = True
        elif tag == "li" and self._is_inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != "ol"

    def handle_data(self, data: str) -> None:
        if self._is_inside and self.texts:
            self.texts[-1] += f" {data}"


def event_texts(html: str) -> list[str]:
    """Returns the texts of the incidents and findings that a page lists, with single spaces."""
    parser = _Events()
    parser.feed(html)
    return [re.sub(r"\s+", " ", text).strip() for text in parser.texts]
