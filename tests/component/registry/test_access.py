"""Authorization of every route, with the whole application and a real database."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.required_permissions import REQUIRED_PERMISSIONS, route_label
from headrace.registry.access.users import user_line
from headrace.registry.api.app import create_app
from headrace.registry.storage.database import Database, sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import STRING, USER_1, Registry, RestResponse, registry_in_process

NAMES = ("root", "reader", "team", "eu", "stranger")
GRANTS = """
grant root admin *
grant reader read *
grant team write team-*
grant team read shared
grant eu admin :.eu:*
grant anonymous read public
"""
NUMBER = '{"type":"record","name":"Number","fields":[{"name":"n","type":"int"}]}'
SECRET = '{"type":"record","name":"Secret","fields":[{"name":"s","type":"string"}]}'
USES_SECRET = '{"type":"record","name":"Uses","fields":[{"name":"s","type":"Secret"}]}'


def users_text(names: tuple[str, ...] = NAMES) -> str:
    cost = Cost(log2_n=4, r=1, p=1)
    return "\n".join(user_line(name, PasswordHash.of(name, name.encode(), cost)) for name in names) + GRANTS


class UserClient:
    """Sends requests of one user. The password equals the user name."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        token = base64.b64encode(f"{name}:{name}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"} if name else {}

    def __call__(self, method: str, path: str, body: Any = None) -> RestResponse:
        return self._registry.call(method, path, body, dict(self._headers))

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self(method, path, body).status


@pytest.fixture
def registry(database_url: str, tmp_path: Path) -> Iterator[Registry]:
    path = tmp_path / "users"
    path.write_text(users_text())
    with registry_in_process(database_url, users=RegistryUsersFile(path)) as found:
        root = UserClient(found, "root")
        for subject, text in (
            ("team-a", STRING),
            ("shared", NUMBER),
            ("public", USER_1),
            ("secret", SECRET),
            (":.eu:orders", STRING),
            (":.eu:secret-eu", SECRET),
        ):
            assert root.status("POST", f"/subjects/{subject}/versions", {"schema": text}) == 200
        yield found


@pytest.fixture
def root(registry: Registry) -> UserClient:
    return UserClient(registry, "root")


@pytest.fixture
def team(registry: Registry) -> UserClient:
    return UserClient(registry, "team")


SCHEMA = {"schema": STRING}
LEVEL = {"compatibility": "NONE"}
# Statuses for root, reader, team, eu, an anonymous client and an unknown user.
CALLS = [
    ("GET", "/", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/healthz", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/readyz", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/schemas/types", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/nowhere", None, (404, 404, 404, 404, 404, 404)),
    ("GET", "/subjects", None, (200, 200, 200, 200, 403, 200)),
    ("GET", "/subjects/team-a/versions", None, (200, 200, 200, 403, 403, 401)),
    ("GET", "/subjects/public/versions/1", None, (200, 200, 403, 403, 403, 200)),
    ("GET", "/subjects/shared/versions/latest/schema", None, (200, 200, 200, 403, 403, 401)),
    ("GET", "/subjects/:.eu:orders/versions/1", None, (200, 200, 403, 200, 403, 401)),
    ("GET", "/contexts/.eu/subjects/orders/versions/1", None, (200, 200, 403, 200, 403, 401)),
    ("GET", "/subjects/:.:team-a/versions", None, (200, 200, 200, 403, 403, 401)),
    ("GET", "/subjects/%74eam-a/versions", None, (200, 200, 200, 403, 403, 401)),
    ("POST", "/subjects/team-a/versions", SCHEMA, (200, 403, 200, 403, 403, 401)),
    ("POST", "/subjects/team-a/versions?force=true", SCHEMA, (200, 403, 403, 403, 403, 401)),
    ("POST", "/subjects/shared/versions", {"schema": NUMBER}, (200, 403, 403, 403, 403, 401)),
    ("POST", "/subjects/team-a", SCHEMA, (200, 200, 200, 403, 403, 401)),
    ("POST", "/compatibility/subjects/team-a/versions", SCHEMA, (200, 200, 200, 403, 403, 401)),
    ("POST", "/compatibility/subjects/shared/versions/1", SCHEMA, (200, 200, 200, 403, 403, 401)),
    ("DELETE", "/subjects/team-none", None, (404, 403, 404, 403, 403, 401)),
    ("DELETE", "/subjects/team-none?permanent=true", None, (404, 403, 403, 403, 403, 401)),
    ("DELETE", "/subjects/team-a/versions/9", None, (404, 403, 404, 403, 403, 401)),
    ("DELETE", "/subjects/team-a/versions/9?permanent=TRUE", None, (404, 403, 403, 403, 403, 401)),
    ("GET", "/config", None, (200, 200, 200, 200, 403, 200)),
    ("GET", "/config/team-a?defaultToGlobal=true", None, (200, 200, 200, 403, 403, 401)),
    ("PUT", "/config/team-a", LEVEL, (200, 403, 403, 403, 403, 401)),
    ("PUT", "/config", {"compatibility": "BACKWARD"}, (200, 403, 403, 403, 403, 401)),
    ("PUT", "/config/:.eu:", LEVEL, (200, 403, 403, 200, 403, 401)),
    ("PUT", "/contexts/eu/config", LEVEL, (200, 403, 403, 200, 403, 401)),
    ("PUT", "/config/:.__GLOBAL:", LEVEL, (200, 403, 403, 403, 403, 401)),
    ("PUT", "/mode/:.eu:orders", {"mode": "READWRITE"}, (200, 403, 403, 200, 403, 401)),
    ("PUT", "/mode", {"mode": "READWRITE"}, (200, 403, 403, 403, 403, 401)),
    ("GET", "/mode", None, (200, 200, 200, 200, 403, 200)),
    ("GET", "/contexts", None, (200, 200, 200, 200, 403, 200)),
    ("DELETE", "/contexts/.none", None, (204, 403, 403, 403, 403, 401)),
    ("DELETE", "/contexts/.eu", None, (422, 403, 403, 422, 403, 401)),
    ("GET", "/subjects/__GLOBAL/versions", None, (422, 422, 422, 422, 403, 422)),
]


def test_each_route_checks_its_required_permission(registry: Registry) -> None:
    with all_cases() as case:
        for method, path, body, statuses in CALLS:
            with case(f"{method} {path}"):
                found = tuple(UserClient(registry, name).status(method, path, body) for name in (*NAMES, ""))
                assert found == statuses


def test_every_route_has_a_required_permission(tmp_path: Path) -> None:
    app = create_app(Database(sqlite_url(tmp_path / "registry.db")))
    routes = {
        (method, route_label(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert routes == set(REQUIRED_PERMISSIONS)


def test_denials_have_the_api_s_error_format(registry: Registry) -> None:
    anonymous = UserClient(registry, "")("GET", "/subjects/secret/versions")
    assert anonymous.error[:2] == (401, 40101)
    assert anonymous.headers["WWW-Authenticate"] == 'Basic realm="schema registry", charset="UTF-8"'
    assert anonymous.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    team = UserClient(registry, "team")("DELETE", "/subjects/secret")
    assert team.error == (403, 40301, "User:team is denied operation Write on subject secret")
    assert "WWW-Authenticate" not in team.headers


def test_wrong_credentials_are_rejected_on_public_routes_too(registry: Registry) -> None:
    with all_cases() as case:
        for value in ["Basic cm9vdDp4", "Basic !", "Bearer x", "", "Basic " + "A" * 9000]:
            with case(value):
                for path in ("/subjects", "/nowhere", "/healthz"):
                    response = registry.get(path, Authorization=value)
                    assert response.error[:2] == (401, 40101)
                    assert "WWW-Authenticate" in response.headers


def test_lists_contain_readable_subjects_only(registry: Registry, root: UserClient, team: UserClient) -> None:
    assert team("GET", "/subjects").json == ["shared", "team-a"]
    assert team("GET", "/subjects?limit=1&offset=1").json == ["team-a"]
    assert UserClient(registry, "")("GET", "/subjects").json == ["public"]
    assert UserClient(registry, "eu")("GET", "/subjects").json == [":.eu:orders", ":.eu:secret-eu"]
    assert set(team("GET", "/subjects").json) < set(root("GET", "/subjects").json)
    assert {row["subject"] for row in team("GET", "/schemas").json} == {"shared", "team-a"}


def schema_id(root: UserClient, subject: str) -> int:
    return int(root("GET", f"/subjects/{subject}/versions/1").json["id"])


def test_schema_by_id_requires_a_readable_subject_that_uses_it(
    registry: Registry, root: UserClient, team: UserClient
) -> None:
    own, secret = schema_id(root, "team-a"), schema_id(root, "secret")
    for path in ("", "/schema", "/subjects", "/versions"):
        assert team.status("GET", f"/schemas/ids/{own}{path}") == 200
        response = team("GET", f"/schemas/ids/{secret}{path}")
        assert response.error[:2] == (403, 40301)
        # A `subject` parameter does not grant access to a schema that the subject does not use.
        assert team.status("GET", f"/schemas/ids/{secret}{path}?subject=team-a") == 403
        assert team.status("GET", f"/schemas/ids/{secret}{path}?subject=secret") == 403
    assert team.status("GET", "/schemas/ids/99999") == 404
    guid = root("GET", f"/schemas/ids/{secret}").json["guid"]
    assert team.status("GET", f"/schemas/guids/{guid}") == 403
    assert UserClient(registry, "eu")("GET", f"/schemas/guids/{guid}/ids").json[0]["context"] == ".eu"
    assert len(UserClient(registry, "eu")("GET", f"/schemas/guids/{guid}/ids").json) == 1
    assert len(root("GET", f"/schemas/guids/{guid}/ids").json) == 2


def test_schema_becomes_readable_with_its_first_readable_subject(
    registry: Registry, root: UserClient, team: UserClient
) -> None:
    text = '{"type":"fixed","name":"F","size":3}'
    new = root("POST", "/subjects/elsewhere/versions", {"schema": text}).json["id"]
    assert team.status("GET", f"/schemas/ids/{new}") == 403
    assert team.status("POST", "/subjects/team-f/versions", {"schema": text}) == 200
    assert team.status("GET", f"/schemas/ids/{new}") == 200
    assert team("GET", f"/schemas/ids/{new}/subjects").json == ["team-f"]


def test_search_in_other_contexts_skips_unreadable_subjects(registry: Registry, root: UserClient) -> None:
    assert root("GET", "/subjects/orders/versions/1").json["subject"] == ":.eu:orders"
    assert UserClient(registry, "team").status("GET", "/subjects/team-x/versions/1") == 404
    root("POST", "/subjects/:.eu:team-x/versions", SCHEMA)
    assert root.status("GET", "/subjects/team-x/versions/1") == 200
    assert UserClient(registry, "team").status("GET", "/subjects/team-x/versions/1") == 404
    assert UserClient(registry, "team").status("POST", "/subjects/team-x", SCHEMA) == 404


def test_referenced_schemas_must_be_readable(root: UserClient, team: UserClient) -> None:
    body = {"schema": USES_SECRET, "references": [{"name": "Secret", "subject": "secret", "version": 1}]}
    for path in (
        "/subjects/team-b/versions",
        "/subjects/team-b",
        "/compatibility/subjects/team-b/versions",
        "/compatibility/subjects/team-b/versions/1",
    ):
        response = team("POST", path, body)
        assert response.error[:2] == (403, 40301)
    assert root.status("POST", "/subjects/team-b/versions", body) == 200
    shared = {
        "schema": USES_SECRET.replace("Secret", "Number"),
        "references": [{"name": "Number", "subject": "shared", "version": 1}],
    }
    assert team.status("POST", "/subjects/team-c/versions", shared) == 200


def test_references_are_authorized_in_the_context_of_the_subject(registry: Registry) -> None:
    body = {"schema": USES_SECRET, "references": [{"name": "Secret", "subject": "secret-eu", "version": 1}]}
    eu = UserClient(registry, "eu")
    assert eu.status("POST", "/contexts/eu/subjects/uses/versions", body) == 200
    body["references"] = [{"name": "Secret", "subject": ":.:secret", "version": 1}]
    assert eu.status("POST", "/contexts/eu/subjects/uses/versions", body) == 403


def test_setting_an_alias_requires_admin_permission_on_its_target(registry: Registry) -> None:
    eu = UserClient(registry, "eu")
    assert eu.status("PUT", "/config/:.eu:door", {"alias": "orders"}) == 200
    assert eu.status("GET", "/subjects/:.eu:door/versions") == 200
    response = eu("PUT", "/config/:.eu:door", {"alias": ":.:secret"})
    assert response.error[:2] == (403, 40301)
    assert eu.status("PUT", "/config/:.eu:door", {"alias": None}) == 200


def test_references_are_authorized_in_any_charset(team: UserClient, registry: Registry) -> None:
    body = {"schema": USES_SECRET, "references": [{"name": "Secret", "subject": "secret", "version": 1}]}
    token = base64.b64encode(b"team:team").decode()
    response = registry.call(
        "POST",
        "/subjects/team-b",
        json.dumps(body).encode("utf-16"),
        {"Authorization": f"Basic {token}", "Content-Type": "application/json; charset=utf-16"},
    )
    assert response.status == 403


def test_registry_without_users_file_allows_everything(tmp_path: Path) -> None:
    with registry_in_process(sqlite_url(tmp_path / "registry.db")) as registry:
        assert UserClient(registry, "nobody").status("PUT", "/config", LEVEL) == 200
