"""The registry client from settings: servers, credentials, and protection of credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.registry.client import BasicAuth, BearerAuth
from headrace.registry.client.of_settings import registry_client
from headrace.registry.errors import RegistryUnavailable
from headrace.settings import Settings, SettingsError, load_settings

URL = "http://127.0.0.1:1/registry,http://localhost:2"


def settings(**keys: str) -> Settings:
    return load_settings(flags={f"registry.{key}": value for key, value in {"url": URL, **keys}.items()})


def auths(**keys: str) -> list[Any]:
    return [server.auth for server in registry_client(settings(**keys))._transport.servers]


def test_settings_give_servers_and_credentials() -> None:
    assert registry_client(settings()).url == URL
    assert registry_client(Settings()).url == "http://127.0.0.1:8081"
    assert auths() == [None, None]
    assert auths(client_user="shop", client_password="sesame") == [BasicAuth("shop", "sesame")] * 2
    assert auths(client_user="shop", url="http://me:own@127.0.0.1:1,http://localhost:2") == [
        BasicAuth("me", "own"),
        BasicAuth("shop", ""),
    ]
    assert auths(client_token="sesame") == [BearerAuth("sesame")] * 2


def test_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    auth = auths(client_token_file=str(path))[0]
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert auth.header() == f"Bearer {token}"
    for content, named in ((b"", str(path)), (b"t\xc3\xa4st", str(path)), (b"two words", "token")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=named):
            auth.header()
    path.unlink()
    with pytest.raises(RegistryUnavailable, match=str(path)):
        registry_client(settings(client_token_file=str(path))).subjects()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"client_password": "sesame"}, r"registry\.client_password.*registry\.client_user"),
        ({"client_user": "a", "client_token": "sesame"}, r"registry\.client_user.*registry\.client_token"),
        ({"client_user": "a:b", "client_password": "sesame"}, r"registry\.client_user"),
        ({"client_token": "open sesame"}, r"registry\.client_token"),
    ],
)
def test_invalid_credentials_name_the_setting(keys: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        registry_client(settings(**keys))
    assert "sesame" not in str(caught.value)


def test_tls_files_are_checked_when_the_client_is_created() -> None:
    with pytest.raises(RegistryUnavailable, match=r"missing\.pem"):
        registry_client(settings(url="https://127.0.0.1:1", client_ca="missing.pem"))


def of_directory(
    directory: Path, text: str, environment: dict[str, str], *, config: Path | None = None, home: Path | None = None
) -> Settings:
    """Settings from a headrace.toml in a working directory, with these `registry` keys in the environment."""
    (directory / "headrace.toml").write_text(f"[registry]\n{text}\n")
    variables = {f"HEADRACE__REGISTRY__{key.upper()}": value for key, value in environment.items()}
    return load_settings(working_dir=directory, environment=variables, config=config, home=home)


PASSWORD = {"client_user": "ci", "client_password": "sesame"}


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ('url = "https://evil.example"', PASSWORD),
        ('url = "https://evil.example"\nclient_user = "ci"', {"client_password": "sesame"}),
        ('url = "https://evil.example"', {"client_token": "sesame"}),
        ('url = "https://evil.example"', {"client_token_file": "/run/secrets/token"}),
        ('url = "https://evil.example"\nclient_token_file = "/run/secrets/token"', {}),
        ('url = "https://evil.example"\nclient_token_file = "../token"', {}),
        ('listen = "evil.example:80"', PASSWORD),
        ('url = "https://evil.example"\nclient_hosts = ["evil.example"]', PASSWORD),
        ('url = "https://evil.example"', {**PASSWORD, "client_hosts": "good.example"}),
        ('url = "https://good.example,https://evil.example"', {**PASSWORD, "client_hosts": "good.example"}),
        ('url = "https://evil.example:1"', {**PASSWORD, "client_hosts": "evil.example:2"}),
        ('url = "http://127.0.0.1:1"', PASSWORD),
    ],
)
def test_working_directory_settings_cannot_redirect_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"headrace\.toml.*registry\.client_\w+") as caught:
        registry_client(of_directory(tmp_path, text, environment))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ('url = "https://good.example"', {}),
        ('url = "https://good.example"\nclient_user = "ci"\nclient_password = "own"', {}),
        ('url = "https://good.example"\nclient_token_file = "token"', {}),
        ("workers = 1", {**PASSWORD, "url": "https://good.example"}),
        ('url = "https://evil.example"', {**PASSWORD, "url": "https://good.example"}),
        ('url = "https://good.example"', {**PASSWORD, "client_hosts": "other.example,good.example"}),
        ('url = "https://good.example:8081"', {**PASSWORD, "client_hosts": "good.example:8081"}),
        ('url = "https://[::1]:8081"', {**PASSWORD, "client_hosts": "[::1]:8081"}),
        ('client_user = "ci"\nclient_password = "own"', {"url": "https://good.example"}),
    ],
)
def test_credentials_are_sent_to_a_server_from_a_trusted_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "evil" not in registry_client(of_directory(tmp_path, text, environment)).url


def test_explicitly_named_settings_file_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "headrace.toml"
    text = 'url = "https://good.example"'
    registry_client(of_directory(tmp_path, text, PASSWORD, config=path))
    monkeypatch.chdir("/")
    home = tmp_path / ".config" / "headrace"
    home.mkdir(parents=True)
    path.rename(home / "headrace.toml")
    variables = {f"HEADRACE__REGISTRY__{key.upper()}": value for key, value in PASSWORD.items()}
    registry_client(load_settings(working_dir=home / "elsewhere", environment=variables, home=tmp_path))
    named = {**variables, "HEADRACE_CONFIG": str(home / "headrace.toml")}
    registry_client(load_settings(working_dir=home, environment=named))
