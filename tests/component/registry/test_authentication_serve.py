"""A served registry with users by password, token or certificate, with an audit log and request rates."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cli.command import CommandError
from headrace.cli.registry_access import check_access, check_audit_log, mtls_listener, tls_of, users_of
from headrace.registry.api.mtls import subject_text
from headrace.settings import Address, RegistrySettings, Settings
from support.certificates import Authority
from support.free_ports import free_port
from support.registry.registry_calls import CONTENT_TYPE, STRING, USER_1, USER_2, Registry, RestResponse

KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://id.example.com", "registry"
REQUESTS_PER_SECOND = 20
USERS = """
user shop -
certificate shop CN=shop
grant shop write shop-*
grant @boss admin *
grant * read *
"""


def token(**claims: Any) -> dict[str, str]:
    claims_of_token = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": time.time() + 600,
        "sub": "jo",
        "realm": {"roles": ["boss"]},
    }
    made = jwt.encode({**claims_of_token, **claims}, KEY, algorithm="ES256", headers={"kid": "k"})
    return {"Authorization": f"Bearer {made}"}


class Secured:
    """Calls the registry over TLS, on the port for client certificates if one is given."""

    def __init__(self, url: str, port: int, directory: Path, authority: Authority, service: Any) -> None:
        self.service = service
        self.authorities = authority.ca_file
        self._ports = {False: Registry(url).port, True: port}
        self._authority = authority
        self._certificates: dict[str, tuple[Path, Path]] = {}
        self.audit_log = directory / "audit.jsonl"

    def connection(self, certificate: str | None, authority: Authority | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self._authority.ca_file))
        if certificate:
            if certificate not in self._certificates:
                self._certificates[certificate] = (authority or self._authority).certificate(certificate)
            context.load_cert_chain(*self._certificates[certificate])
        port = self._ports[certificate is not None]
        return http.client.HTTPSConnection("localhost", port, timeout=60, context=context)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        certificate: str | None = None,
    ) -> RestResponse:
        with closing(self.connection(certificate)) as connection:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": CONTENT_TYPE, **(headers or {})})
            response = connection.getresponse()
            return RestResponse(
                response.status,
                {name.title(): value for name, value in response.getheaders()},
                response.read().decode(),
            )

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, start_module_service: Any) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "authority")
    certificate, key = authority.certificate("server")
    keys = {"keys": [{**jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}]}
    (directory / "keys.json").write_text(json.dumps(keys))
    (directory / "users").write_text(USERS)
    port = free_port()
    settings = {
        "users": directory / "users",
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_client_listen": f"127.0.0.1:{port}",
        "tls_client_ca": authority.ca_file,
        "token_keys": directory / "keys.json",
        "token_issuer": ISSUER,
        "token_audience": AUDIENCE,
        "roles_claim": "realm.roles",
        "requests_per_second_max": REQUESTS_PER_SECOND,
        "audit_log": directory / "audit.jsonl",
    }
    environment = {f"HEADRACE__REGISTRY__{name.upper()}": str(value) for name, value in settings.items()}
    serve = ("registry", "serve", "--data-dir", str(directory), "--registry-listen", "127.0.0.1:0", "--workers", "2")
    service = start_module_service("headrace", *serve, environment=environment)
    yield Secured(str(service.addresses["registry"]), port, directory, authority, service)


@pytest.mark.servers
def test_tokens_and_certificates_authenticate(secured: Secured) -> None:
    registered = {"schema": USER_1}
    assert secured.call("POST", "/subjects/a/versions", registered).status == 401
    refused = secured.call("POST", "/subjects/a/versions", registered, token(aud="other"))
    assert refused.status == 401
    assert "Bearer" in refused.headers["Www-Authenticate"]
    assert secured.call("POST", "/subjects/a/versions", registered, token(realm={"roles": []})).status == 403
    assert secured.call("POST", "/subjects/a/versions", registered, token()).status == 200
    for _ in range(3):  # the last responses are cached
        assert secured.call("GET", "/subjects", headers=token()).json == ["a"]
        assert secured.call("GET", "/subjects", certificate="shop").json == ["a"]
        assert secured.call("GET", "/subjects").status == 401
    forbidden = secured.call("POST", "/subjects/a/versions", {"schema": USER_2}, certificate="shop")
    assert forbidden.error[:2] == (403, 40301)
    assert secured.call("POST", "/subjects/shop-a/versions", {"schema": STRING}, certificate="shop").status == 200
    # An unknown certificate permits nothing, and a token takes precedence over the connection's certificate.
    assert secured.call("GET", "/subjects", certificate="stranger").status == 401
    assert secured.call("PUT", "/config/a", {"compatibility": "FULL"}, token(), certificate="shop").status == 200


@pytest.mark.servers
def test_certificate_of_another_authority_cannot_connect(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    for name in ("shop of others", ""):
        with closing(secured.connection(name, other)) as connection, pytest.raises((ssl.SSLError, OSError)):
            connection.request("GET", "/subjects")
            connection.getresponse()


@pytest.mark.servers
def test_audit_log_has_changes_and_users(secured: Secured) -> None:
    before = len(secured.audited())
    headers = {**token(sub="ann"), "X-Request-ID": "r1"}
    steps: list[tuple[str, str, Any]] = [
        ("POST", "/subjects/audited/versions", {"schema": STRING}),
        ("POST", "/subjects/audited/versions", {"schema": STRING}),
        ("PUT", "/config/audited", {"compatibility": "none", "defaultMetadata": {"properties": {"k": "secret"}}}),
        ("PUT", "/config/audited", {"compatibility": "NONE"}),
        ("POST", "/subjects/audited/versions?force=true", {"schema": '"int"'}),
        ("PUT", "/mode/audited", {"mode": "READONLY"}),
        ("DELETE", "/mode/audited", None),
        ("DELETE", "/config/audited", None),
        ("DELETE", "/subjects/audited/versions/1", None),
        ("DELETE", "/subjects/audited/versions/9", None),
        ("DELETE", "/subjects/audited", None),
        ("DELETE", "/subjects/audited?permanent=true", None),
        ("GET", "/subjects", None),
    ]
    for method, path, body in steps:
        secured.call(method, path, body, headers)
    found = secured.audited()[before:]
    assert {(item["user"], item["client"], item["request_id"]) for item in found} == {("ann", "127.0.0.1", "r1")}
    claims_of_token = [
        {key: item[key] for key in item if key not in ("time", "user", "client", "request_id")} for item in found
    ]
    assert {item.pop("subject") for item in claims_of_token} == {"audited"}
    first, second = (item["schema_id"] for item in claims_of_token if item["action"] == "version_registered")
    assert claims_of_token == [
        {"action": "version_registered", "version": 1, "schema_id": first, "forced": False},
        {
            "action": "configuration_changed",
            "before": {"compatibility": None, "default_metadata": None},
            "after": {"compatibility": "NONE", "default_metadata": "…"},
        },
        {"action": "version_registered", "version": 2, "schema_id": second, "forced": True},
        {"action": "mode_changed", "before": None, "after": "READONLY", "forced": False, "versions_removed": 0},
        {"action": "mode_removed", "before": "READONLY", "recursive": False},
        {"action": "configuration_removed", "before": {"compatibility": "NONE", "default_metadata": "…"}},
        {"action": "version_deleted", "version": 1, "schema_id": first, "permanent": False},
        {"action": "subject_deleted", "versions": [2], "schema_ids": [second], "permanent": False},
        {"action": "subject_deleted", "versions": [1, 2], "schema_ids": [first, second], "permanent": True},
    ]
    assert "secret" not in secured.audit_log.read_text()
    assert secured.audit_log.stat().st_mode & 0o007 == 0


@pytest.mark.servers
def test_compatibility_checks_by_processes_require_permissions(secured: Secured) -> None:
    path, checked = "/compatibility/subjects/a/versions?verbose=true", {"schema": '"string"'}
    response = secured.call("POST", path, checked, token())
    assert response.json["is_compatible"] is False
    assert secured.call("POST", path, checked, token(realm={"roles": []})).status == 403
    assert secured.call("POST", path, checked).status == 401
    assert secured.call("POST", path, {"schema": "{"}, token()).json["is_compatible"] is False


@pytest.mark.servers
def test_client_over_its_rate_gets_retry_after(secured: Secured) -> None:
    headers = token(sub="fast")
    responses = [secured.call("GET", "/subjects", headers=headers) for _ in range(3)]
    assert {response.status for response in responses} == {200}
    with closing(secured.connection(None)) as connection:
        for _ in range(100 * REQUESTS_PER_SECOND):
            connection.request("GET", "/subjects", headers=headers)
            response = connection.getresponse()
            body = json.loads(response.read())
            if response.status != 200:
                break
        assert (response.status, body["error_code"]) == (429, 429)
        assert int(response.headers["Retry-After"]) == 1
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
    # Other users of the same address are not limited.
    assert secured.call("GET", "/subjects", headers=token(sub="slow")).status == 200


@pytest.mark.servers
def test_unreadable_authorities_change_nothing(secured: Secured) -> None:
    text = secured.authorities.read_text()
    try:
        secured.authorities.write_text("none")
        secured.service.process.send_signal(signal.SIGHUP)
        while not any(" ERROR headrace.registry.api.server: " in line for line in secured.service.errors):
            time.sleep(0.01)
    finally:
        secured.authorities.write_text(text)
    assert secured.call("GET", "/subjects", certificate="shop").status == 200


def test_incomplete_settings_are_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("server")
    (tmp_path / "users").write_text(USERS)
    (tmp_path / "keys").write_text("{}")
    local = {"listen": Address("127.0.0.1", 0), "users": str(tmp_path / "users")}
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    rules = {"token_issuer": ISSUER, "token_audience": AUDIENCE}
    ca_file = str(authority.ca_file)
    for wrong, named in [
        ({"token_keys": "k", "users": ""}, r"token_keys.*registry\.users"),
        ({"token_keys": "k"}, r"token_keys.*registry\.token_issuer.*registry\.token_audience"),
        ({"token_keys": str(tmp_path / "none"), **rules}, f"{tmp_path / 'none'}.*No such file"),
        ({"token_keys": str(tmp_path / "keys"), **rules}, f"{tmp_path / 'keys'}.*JSON Web Key Set"),
        ({"access_log": str(tmp_path / "no" / "log")}, r"registry\.access_log.*No such file"),
        ({"requests_per_second_max": -1}, r"registry\.requests_per_second_max"),
        ({"tls_client_listen": "127.0.0.1:1"}, r"tls_client_listen.*registry\.tls_certificate"),
        ({"tls_client_listen": "127.0.0.1:1", "tls_client_ca": "none", **tls}, "tls_client_ca none"),
        ({"tls_client_listen": "nowhere", "tls_client_ca": ca_file, **tls}, "tls_client_listen.*nowhere"),
        ({"tls_client_listen": ":0", "tls_client_ca": ca_file, **tls}, "tls_client_listen.*:0"),
    ]:
        settings = RegistrySettings(**{**local, **wrong})  # type: ignore[arg-type]
        with pytest.raises(CommandError, match=named):
            check_access(settings)
            mtls_listener(settings, tls_of(settings))
    assert users_of(RegistrySettings()) is None
    unwritable = Settings(registry=RegistrySettings(audit_log=str(tmp_path / "no" / "log")))
    with pytest.raises(CommandError, match=r"registry\.audit_log.*No such file.*off"):
        check_audit_log(unwritable)


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ([[("countryName", "DE")], [("organizationName", "The Shop, Ltd")], [("commonName", "shop")]],
         "CN=shop,O=The Shop\\, Ltd,C=DE"),
        ([[("commonName", "a"), ("userId", "b")]], "CN=a+UID=b"),
        ([[("serialNumber", "7")], [("commonName", "#a\\+ ")]], "CN=\\#a\\\\\\+\\ ,serialNumber=7"),
        ([], ""),
    ],
)  # fmt: skip
def test_certificate_subjects_are_written_like_openssl(subject: Any, text: str) -> None:
    assert subject_text(subject) == text
