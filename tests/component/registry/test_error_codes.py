"""Every error of the API with its status, code and message, one row each.

This registry has no associations (40410, 40902 to 40908, 42212) and no forwarding to a leader (50002 to 50004). Clients
make 50005 themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from headrace.registry.storage.database import sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import (
    STRING,
    USER_1,
    USER_INCOMPATIBLE,
    Registry,
    RegistryInProcess,
    registry_in_process,
)

RULE = {"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL"}
CHECK = {"name": "R", "subject": "target", "version": 9}
TOO_LARGE = b'{"schema":"' + b" " * 5_000_000 + b'"}'
USES_R = '{"type":"array","items":"R"}'


@pytest.fixture(scope="module")
def registry(registry: RegistryInProcess) -> Iterator[Registry]:
    """`live` has version 1, `soft` a soft-deleted version 1, and `live-user` references `target`."""
    registry.registered("live", USER_1)
    registry.registered("soft", STRING)
    registry.delete("/subjects/soft")
    registry.registered("target", '{"type":"record","name":"R","fields":[]}')
    registry.registered("live-user", USES_R, references=[{**CHECK, "version": 1}])
    registry.registered(":.full:s", STRING)
    registry.put("/mode/:.frozen:", {"mode": "READONLY"})
    registry.put("/mode/:.import:", {"mode": "IMPORT"})
    registry.register(":.import:s", STRING, id=1, version=1)
    yield registry


def test_every_error_has_its_status_code_and_message(registry: Registry) -> None:
    """`…` matches any text."""
    with all_cases() as case:
        for method, path, body, status, code, message in [
            ("GET", "/subjects/none/versions", None, 404, 40401, "Subject 'none' not found."),
            ("GET", "/subjects/live/versions/2", None, 404, 40402, "Version 2 not found."),
            ("DELETE", "/subjects/soft/versions/latest", None, 404, 40402, "Version -1 not found."),
            ("POST", "/subjects/live", {"schema": STRING}, 404, 40403, "Schema not found"),
            ("GET", "/schemas/ids/99", None, 404, 40403, "Schema 99 not found"),
            ("GET", "/schemas/ids/99/schema", None, 404, 40403, "Schema 99 not found"),
            ("GET", "/schemas/ids/99/subjects", None, 404, 40403, "Schema not found"),
            ("GET", "/schemas/ids/99/versions", None, 404, 40403, "Schema not found"),
            ("GET", "/schemas/guids/x", None, 404, 40403, "Schema x not found"),
            (
                "DELETE",
                "/subjects/soft",
                None,
                404,
                40404,
                "Subject 'soft' was soft deleted.Set permanent=true to delete permanently",
            ),
            (
                "DELETE",
                "/subjects/live?permanent=true",
                None,
                404,
                40405,
                "Subject 'live' was not deleted first before being permanently deleted",
            ),
            (
                "DELETE",
                "/subjects/soft/versions/1",
                None,
                404,
                40406,
                "Subject 'soft' Version 1 was soft deleted.Set permanent=true to delete permanently",
            ),
            (
                "DELETE",
                "/subjects/live/versions/1?permanent=true",
                None,
                404,
                40407,
                "Subject 'live' Version 1 was not deleted first before being permanently deleted",
            ),
            (
                "GET",
                "/config/live",
                None,
                404,
                40408,
                "Subject 'live' does not have subject-level compatibility configured",
            ),
            ("GET", "/mode/live", None, 404, 40409, "Subject 'live' does not have subject-level mode configured"),
            (
                "POST",
                "/subjects/live/versions",
                {"schema": USER_INCOMPATIBLE},
                409,
                40901,
                'Schema being registered is incompatible with an earlier schema for subject "live", '
                "details: [{errorType:…",
            ),
            ("POST", "/subjects/live/versions", {"schema": "{"}, 422, 42201, "Invalid schema of type AVRO, details: …"),
            ("POST", "/subjects/new/versions", {}, 422, 42201, "Empty schema"),
            ("POST", "/subjects/new/versions", {"schema": "x", "schemaType": "X"}, 422, 42201, "Invalid schema type X"),
            (
                "POST",
                "/subjects/new/versions",
                {"schema": STRING, "version": 5},
                422,
                42201,
                "Version is not one more than previous version",
            ),
            (
                "POST",
                "/subjects/new/versions",
                {"schema": USES_R, "references": [CHECK]},
                422,
                42201,
                '…No schema reference found for subject "target" and version 9',
            ),
            (
                "GET",
                "/subjects/live/versions/x",
                None,
                422,
                42202,
                "The specified version 'x' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"',
            ),
            (
                "PUT",
                "/config",
                {"compatibility": "x"},
                422,
                42203,
                "Invalid compatibility level. Valid values are none, backward, forward, full, "
                "backward_transitive, forward_transitive, and full_transitive",
            ),
            (
                "PUT",
                "/mode",
                {"mode": "x"},
                422,
                42204,
                "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.",
            ),
            ("PUT", "/mode/live", {"mode": "FORWARD"}, 422, 42204, "Forward mode only supported on global level"),
            ("PUT", "/mode", {"mode": "FORWARD"}, 422, 42204, "Forward mode only supported on global level"),
            (
                "PUT",
                "/mode/:.__GLOBAL:s",
                {"mode": "FORWARD"},
                422,
                42204,
                "Forward mode only supported on global level",
            ),
            (
                "PUT",
                "/mode/:.__GLOBAL:s",
                {"mode": "READONLY"},
                422,
                42208,
                "The specified subject ':.__GLOBAL:s' is not a valid.",
            ),
            ("POST", "/subjects/live", {"schema": ""}, 404, 40403, "Schema not found"),
            ("POST", "/subjects/live", {"schema": " ", "references": []}, 404, 40403, "Schema not found"),
            ("POST", "/subjects/live", {}, 404, 40403, "Schema not found"),
            ("POST", "/subjects/none", {"schema": ""}, 404, 40401, "Subject 'none' not found."),
            ("POST", "/subjects/none", {"schema": STRING}, 404, 40401, "Subject 'none' not found."),
            ("POST", "/subjects/none", {"schema": "{}", "schemaType": "JSON"}, 422, 42201, "Invalid schema type JSON"),
            (
                "POST",
                "/subjects/:.frozen:s/versions",
                {"schema": STRING},
                422,
                42205,
                "Subject :.frozen:s in context .frozen is in read-only mode",
            ),
            (
                "POST",
                "/subjects/new/versions",
                {"schema": STRING, "id": 9},
                422,
                42205,
                "Subject new in context . is not in import mode",
            ),
            (
                "POST",
                "/subjects/:.import:t/versions",
                {"schema": STRING},
                422,
                42205,
                "Subject :.import:t in context .import is not in read-write mode",
            ),
            (
                "POST",
                "/subjects/:.import:t/versions",
                {"schema": '"int"', "id": 1, "version": 1},
                422,
                42205,
                "Overwrite new schema with id 1 in context .import is not permitted.",
            ),
            ("PUT", "/mode/live", {"mode": "IMPORT"}, 422, 42205, "Cannot import since found existing subjects"),
            (
                "DELETE",
                "/subjects/target",
                None,
                422,
                42206,
                "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=target,version=1}.",
            ),
            (
                "POST",
                "/subjects/:.import:s/versions",
                {"schema": '"int"', "id": 2, "version": 1},
                422,
                42207,
                "Schema already registered with id 1 instead of input id 2",
            ),
            (
                "GET",
                "/subjects/__GLOBAL/versions",
                None,
                422,
                42208,
                "The specified subject '__GLOBAL' is not a valid.",
            ),
            (
                "POST",
                "/subjects/new/versions",
                TOO_LARGE,
                422,
                42209,
                "Register operation failed because schema is too large: …",
            ),
            (
                "POST",
                "/subjects/new/versions",
                {"schema": STRING, "ruleSet": {"domainRules": [RULE, RULE]}},
                422,
                42210,
                "Found rule with duplicate name 'r'",
            ),
            ("DELETE", "/contexts/.full", None, 422, 42211, "The specified context '.full' is not empty."),
            ("POST", "/subjects/live", b"", 422, 422, "…"),
            ("POST", "/subjects/live", b"{", 400, 400, "…"),
            ("GET", "/nothing", None, 404, 404, "HTTP 404 Not Found"),
            ("GET", "/schemas/ids/x", None, 404, 404, "HTTP 404 Not Found"),
            ("PATCH", "/subjects", None, 405, 405, "HTTP 405 Method Not Allowed"),
            ("PUT", "/subjects", None, 405, 405, "HTTP 405 Method Not Allowed"),
            ("GET", "/schemas/ids/99999999999", None, 404, 404, "HTTP 404 Not Found"),
            ("GET", "/schemas/ids/-1", None, 404, 40403, "Schema -1 not found"),
            ("GET", "/subjects/none/versions/1", None, 404, 40401, "Subject 'none' not found."),
            ("GET", "/subjects/none/versions/1/referencedby", None, 404, 40401, "Subject 'none' not found."),
            ("GET", "/subjects/:.other:s/versions", None, 404, 40401, "Subject ':.other:s' not found."),
            ("DELETE", "/subjects/none", None, 404, 40401, "Subject 'none' not found."),
            ("DELETE", "/subjects/none/versions/1", None, 404, 40401, "Subject 'none' not found."),
            ("DELETE", "/config/none", None, 404, 40401, "Subject 'none' not found."),
            ("GET", "/subjects/%00/versions", None, 422, 42208, "The specified subject '\x00' is not a valid."),
        ]:
            with case(f"{method} {path}"):
                found = registry.call(method, path, body).error
                assert found[:2] == (status, code)
                start, omitted, end = message.partition("…")
                assert found[2].startswith(start)
                assert found[2].endswith(end) if omitted else found[2] == message


@pytest.fixture
def failing_registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry with a missing table in its database."""
    url = sqlite_url(tmp_path / "registry.db")
    with registry_in_process(url) as registry:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE versions RENAME TO lost"))
        engine.dispose()
        yield registry


def test_database_failure_gives_50001(failing_registry: Registry) -> None:
    with all_cases() as case:
        for method, path, body in [
            ("GET", "/subjects", None),
            ("GET", "/subjects/s/versions/1", None),
            ("GET", "/schemas/ids/1", None),
            ("POST", "/subjects/s/versions", {"schema": STRING}),
            ("POST", "/subjects/s", {"schema": STRING}),
            ("DELETE", "/subjects/s", None),
        ]:
            with case(f"{method} {path}"):
                status, code, message = failing_registry.call(method, path, body).error
                assert (status, code) == (500, 50001)
                # The response has the database's message, but not the request.
                assert "versions" in message
                assert "SELECT" not in message


def test_incompatibility_code_of_older_releases(tmp_path: Path) -> None:
    with registry_in_process(sqlite_url(tmp_path / "registry.db"), profile=7) as registry:
        registry.registered("s", USER_1)
        assert registry.register("s", USER_INCOMPATIBLE).error[:2] == (409, 409)
