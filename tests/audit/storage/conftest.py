"""Databases for the tests of the audit's storage: SQLite, and PostgreSQL in its own tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import ON_EACH_DATABASE
from support.memory_directory import memory_directory
from support.servers.postgres_server import PostgresServer

NewAddress = Callable[[], Path | str]


@pytest.fixture(params=ON_EACH_DATABASE)
def new_address(request: pytest.FixtureRequest) -> Iterator[NewAddress]:
    """Creates empty databases, and returns their addresses."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        urls: list[str] = []

        def new_url() -> str:
            urls.append(server.new_database())
            return urls[-1]

        yield new_url
        for url in urls:
            server.drop_database(url)
        return
    with memory_directory("audit") as directory:
        numbers = iter(range(1_000_000))
        yield lambda: directory / f"audit-{next(numbers)}.db"
