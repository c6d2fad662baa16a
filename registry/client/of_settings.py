"""The registry's client as the settings describe it."""

from __future__ import annotations

from pathlib import Path

from headrace.registry.client import Auth, BasicAuth, BearerAuth, RegistryClient, Tls
from headrace.registry.client.access import parse_servers
from headrace.settings import RegistrySettings, Settings, SettingsError
from headrace.settings.addresses import resolve_registry_url
from headrace.settings.trust import trusted_credentials

TOKEN_BYTES_MAX = 64 * 1024
CREDENTIALS = tuple(f"registry.client_{name}" for name in ("user", "password", "token", "token_file"))


def registry_client(settings: Settings) -> RegistryClient:
    """A client of the registry in use, with the credentials and certificates of `registry.client_*`.

    Raises:
        SettingsError: they contradict each other, cannot be sent, or would go to whom the working directory names.
        RegistryUnavailable: the URL is none, or a TLS file cannot be used.
    """
    registry = settings.registry
    url = resolve_registry_url(settings)
    _require_trusted(settings, url)
    return RegistryClient(
        url,
        timeout_s=registry.client_timeout.seconds,
        auth=_auth(registry),
        tls=Tls(registry.client_ca, registry.client_certificate, registry.client_key, registry.client_key_password),
    )


def _require_trusted(settings: Settings, url: str) -> None:
    """
    Raises:
        SettingsError: the working directory's own settings file names the server, and other sources the credentials.
    """
    registry, of_directory = settings.registry, settings.keys_from_working_directory
    place = "registry.url" if registry.url else "registry.listen"
    kept = trusted_credentials(settings, CREDENTIALS)
    if place not in of_directory or not kept:
        return
    allowed = () if "registry.client_hosts" in of_directory else registry.client_hosts
    for server in parse_servers(url):
        name = f"[{server.host}]" if ":" in server.host else server.host
        if not {name, server.host, f"{name}:{server.port}"} & set(allowed):
            raise SettingsError(
                f"{place} is set in the working directory's headrace.toml and {kept[0]} is not, so that the "
                f"credentials would go to whom that file names: expected both from one source; give the URL beside the "
                f"credentials (HEADRACE__REGISTRY__URL), or allow its host (HEADRACE__REGISTRY__CLIENT_HOSTS={name})"
            )


def _auth(registry: RegistrySettings) -> Auth | None:
    given = [name for name in ("client_user", "client_token", "client_token_file") if getattr(registry, name)]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(f'registry.{name}' for name in given)}: expected only one of them")
    if registry.client_password and not registry.client_user:
        raise SettingsError("registry.client_password: expected registry.client_user beside it")
    try:
        if registry.client_user:
            return BasicAuth(registry.client_user, registry.client_password)
        if registry.client_token:
            return BearerAuth(registry.client_token)
    except ValueError as error:
        raise SettingsError(f"registry.{given[0]}: {error}") from None
    if registry.client_token_file:
        path = Path(registry.client_token_file).expanduser()
        return BearerAuth(lambda: _token(path))
    return None


def _token(path: Path) -> str:
    """Read before every request, since whoever writes such files replaces them before they expire."""
    try:
        with path.open(encoding="ascii") as file:
            return file.read(TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the token file {path} holds no token") from None
