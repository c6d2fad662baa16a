"""Creates the registry client that the settings describe."""

from __future__ import annotations

from pathlib import Path

from headrace.registry.client import Auth, BasicAuth, BearerAuth, RegistryClient, Tls
from headrace.registry.client.access import parse_servers
from headrace.settings import RegistrySettings, Settings, SettingsError
from headrace.settings.addresses import resolve_registry_url
from headrace.settings.loading import trusted_credentials

TOKEN_BYTES_MAX = 64 * 1024
CREDENTIALS = tuple(f"registry.client_{name}" for name in ("user", "password", "token", "token_file"))


def registry_client(settings: Settings, timeout_s: float | None = None) -> RegistryClient:
    """A client of the configured registry, with the credentials and certificates of `registry.client_*`.

    Args:
        timeout_s: replaces `registry.client_timeout`; None for this setting.

    Raises:
        SettingsError: the credentials contradict each other, are malformed, or would go to an untrusted server.
        RegistryUnavailable: the URL or a proxy is malformed, or a TLS file cannot be used.
    """
    registry = settings.registry
    url = resolve_registry_url(settings)
    _require_trusted(settings, url)
    return RegistryClient(
        url,
        timeout_s=registry.client_timeout.seconds if timeout_s is None else timeout_s,
        auth=_auth(registry),
        tls=Tls(registry.client_ca, registry.client_certificate, registry.client_key, registry.client_key_password),
    )


def _require_trusted(settings: Settings, url: str) -> None:
    """Rejects a server if its URL comes from `headrace.toml` in the working directory and a credential is trusted (see
    `trusted_credentials`).

    Otherwise a foreign settings file could redirect the credentials. `registry.client_hosts` lists servers that may get
    them, unless it comes from the same file.

    Raises:
        SettingsError: a server comes from that file, a credential is trusted, and the server is not allowed.
        RegistryUnavailable: the URL is malformed.
    """
    registry, of_directory = settings.registry, settings.keys_from_working_directory
    setting = "registry.url" if registry.url else "registry.listen"
    credentials = trusted_credentials(settings, CREDENTIALS)
    if setting not in of_directory or not credentials:
        return
    allowed = () if "registry.client_hosts" in of_directory else registry.client_hosts
    for server in parse_servers(url):
        name = f"[{server.host}]" if ":" in server.host else server.host
        if not {name, server.host, f"{name}:{server.port}"} & set(allowed):
            raise SettingsError(
                f"{setting} is set in the working directory's headrace.toml but {credentials[0]} is not, so that file "
                f"would redirect the credentials: set the URL where the credentials are set (HEADRACE__REGISTRY__URL), "
                f"or allow the host (HEADRACE__REGISTRY__CLIENT_HOSTS={name})"
            )


def _auth(registry: RegistrySettings) -> Auth | None:
    given = [name for name in ("client_user", "client_token", "client_token_file") if getattr(registry, name)]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(f'registry.{name}' for name in given)}: set only one of them")
    if registry.client_password and not registry.client_user:
        raise SettingsError("registry.client_password: requires registry.client_user")
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
    """Reads the token from a file. It is called before every request, because token files are replaced before they
    expire.

    Raises:
        ValueError: the file cannot be read, is empty or is not ASCII.
    """
    try:
        with path.open(encoding="ascii") as file:
            token = file.read(TOKEN_BYTES_MAX).strip()
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ValueError(f"the token file {path} is empty or not ASCII; write one token to it")
    return token
