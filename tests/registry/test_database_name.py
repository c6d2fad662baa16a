"""The display name of a database URL."""

from __future__ import annotations

import pytest

from headrace.registry.storage.engines import DatabaseAddress


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://me:hunter2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me@db/x?password=hunter2&sslmode=require", "postgresql://me@db/x?sslmode=require"),
        ("postgresql://me@db/x?sslkey=a.pem&sslpassword=hunter2", "postgresql://me@db/x?sslkey=a.pem"),
        ("sqlite:////var/x.db", "/var/x.db"),
    ],
)
def test_display_name_has_no_password(url: str, shown: str) -> None:
    assert DatabaseAddress.of(url).name == shown
