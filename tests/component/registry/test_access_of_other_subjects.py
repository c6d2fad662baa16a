"""Authorization of subjects other than the one in the path."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from support.registry.registry_calls import STRING, Registry, RestResponse, registry_in_process

GRANTS = """
grant root admin *
grant reader read *
grant reader write team-*
grant team write team-*
grant team read shared*
grant team read :.eu:team-*
"""
NUMBER = '{"type":"record","name":"Number","fields":[{"name":"n","type":"int"}]}'
SECRET = '{"type":"record","name":"Number","fields":[{"name":"s","type":"string"}]}'
USES = '{"type":"record","name":"Uses","fields":[{"name":"x","type":"Number"}]}'
TAGS = {"tagsToAdd": [{"schemaEntity": {"entityPath": "Number", "entityType": "sr_record"}, "tags": ["PII"]}]}


class UserClients:
    """Sends requests of a user. The password equals the user name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __call__(self, name: str, method: str, path: str, body: Any = None) -> RestResponse:
        token = base64.b64encode(f"{name}:{name}".encode()).decode()
        return self._registry.call(method, path, body, {"Authorization": f"Basic {token}"})

    def register(self, subject: str, text: str, *references: tuple[str, str]) -> int:
        listed = [{"name": name, "subject": other, "version": 1} for name, other in references]
        response = self("root", "POST", f"/subjects/{subject}/versions", {"schema": text, "references": listed})
        assert response.status == 200, response.text
        return int(response.json["id"])


@pytest.fixture(scope="module")
def call(registry_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserClients]:
    cost = Cost(log2_n=4, r=1, p=1)
    users = [user_line(name, PasswordHash.of(name, name.encode(), cost)) for name in ("root", "reader", "team")]
    path = tmp_path_factory.mktemp("access") / "users"
    path.write_text("\n".join(users) + GRANTS)
    with registry_in_process(registry_database_url, users=RegistryUsersFile(path)) as registry:
        yield UserClients(registry)


@pytest.mark.parametrize("name", ["team", "reader"])
def test_tags_cannot_be_changed_in_an_unreadable_context(call: UserClients, name: str) -> None:
    call.register(":.eu:team-tagged", NUMBER)
    assert call(name, "GET", "/subjects/team-tagged/versions/1").status == 200
    assert call(name, "POST", "/subjects/team-tagged/versions/1/tags", TAGS).error[:2] == (404, 40401)
    assert call("root", "GET", "/subjects/:.eu:team-tagged/versions").json == [1]


def test_scopes_are_listed_for_their_readers_only(call: UserClients) -> None:
    for scope in ("team-scope", "hidden-scope", ":.eu:team-scope", ":.eu:hidden-scope", ":.us:"):
        assert call("root", "PUT", f"/config/{scope}", {"compatibility": "NONE"}).status == 200
    assert call("root", "PUT", "/mode/team-mode", {"mode": "READWRITE"}).status == 200
    assert call("root", "PUT", "/mode", {"mode": "READWRITE"}).status == 200
    readable = {":.:", "team-mode", "team-scope", ":.eu:team-scope", ":.us:"}
    assert set(call("team", "GET", "/scopes").json) == readable
    assert readable | {"hidden-scope", ":.eu:hidden-scope"} == set(call("root", "GET", "/scopes").json)
    assert call("root", "GET", "/scopes?offset=1&limit=1").json == call("root", "GET", "/scopes").json[1:2]
    for scope in (*readable, "hidden-scope", ":.eu:hidden-scope"):
        call("root", "DELETE", f"/config/{scope}")
        call("root", "DELETE", f"/mode/{scope}")


def test_subject_parameter_is_returned_to_its_readers_only(call: UserClients) -> None:
    schema_id = call.register("team-a", STRING)
    call.register("hidden", STRING)
    assert call("reader", "GET", f"/schemas/ids/{schema_id}?subject=hidden").json["subject"] == "hidden"
    assert call("team", "GET", f"/schemas/ids/{schema_id}?subject=team-a").json["subject"] == "team-a"
    with_hidden = call("team", "GET", f"/schemas/ids/{schema_id}?subject=hidden").json
    assert with_hidden == call("team", "GET", f"/schemas/ids/{schema_id}?subject=nowhere").json


def test_subject_parameter_does_not_reveal_whether_it_uses_an_id(call: UserClients) -> None:
    schema_id = call.register(":.eu:hidden", SECRET)
    for path in ("", "/schema", "/subjects", "/versions"):
        existing, missing = (
            call("team", "GET", f"/schemas/ids/{schema_id}{path}?subject=:.eu:{name}").error
            for name in ("hidden", "nowhere")
        )
        assert existing == missing


def test_referenced_by_lists_readable_schemas_only(call: UserClients) -> None:
    call.register("shared-1", NUMBER)
    hidden_id = call.register("hidden-user", USES, ("Number", "shared-1"))
    own_id = call.register("team-user", USES.replace("Uses", "Own"), ("Number", "shared-1"))
    path = "/subjects/shared-1/versions/1/referencedby"
    assert call("root", "GET", path).json == [hidden_id, own_id]
    assert call("team", "GET", path).json == [own_id]


@pytest.mark.parametrize("path", ["/subjects/team-door/versions", "/subjects/team-door"])
def test_references_through_an_alias_are_authorized_at_the_target(call: UserClients, path: str) -> None:
    call.register("shared", NUMBER)
    call.register(":.eu:shared", SECRET)
    call.register(":.eu:orders", STRING)
    assert call("root", "PUT", "/config/team-door", {"alias": ":.eu:orders"}).status == 200
    assert call("root", "PUT", "/config/:.eu:orders", {"compatibility": "NONE"}).status == 200
    body = {"schema": USES, "references": [{"name": "Number", "subject": "shared", "version": 1}]}
    assert call("team", "POST", path, body).error[:2] == (403, 40301)
