"""The display name of a database URL."""

from __future__ import annotations

import pytest

from headrace.registry.storage.database import connection_remedy
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


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('connection failed: FATAL:  password authentication failed for user "r"', "user and password"),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "r", no encryption', "pg_hba"),
        ('connection failed: FATAL:  database "nowhere" does not exist', "create this database"),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", "host"),
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', "start the database server"),
        ("connection failed: SSL error: certificate verify failed", "sslrootcert"),
        ("connection timeout expired", "overloaded"),
        ("FATAL:  sorry, too many clients already", "max_connections"),
        ("attempt to write a readonly database", "writable"),
        ("database disk image is malformed", "backup"),
    ],
)
def test_each_cause_of_an_unusable_database_has_its_remedy(message: str, words: str) -> None:
    assert words in connection_remedy(message)
