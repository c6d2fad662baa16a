"""How the settings `hive.server_…` say that a HiveServer2 is reached."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from headrace.hive_ddl.executors.hiveserver import KERBEROS, PASSWORD_AUTHS, HiveServerAddress
from headrace.settings import HiveSettings, Settings, SettingsError


def hive_server_address(settings: Settings) -> HiveServerAddress:
    """
    Raises:
        SettingsError: the settings contradict each other, or the file of the password cannot be read.
    """
    hive = settings.hive
    if problem := _problem(hive):
        raise SettingsError(problem)
    parts = urlsplit(hive.executor)
    assert parts.hostname and parts.port, "the settings were checked when they were read"
    return HiveServerAddress(
        parts.hostname, parts.port, hive.server_auth, hive.server_user, _password(hive), hive.server_kerberos_service
    )


def _problem(hive: HiveSettings) -> str:
    """What contradicts what, "" for nothing."""
    given = [name for name in ("server_password", "server_password_file") if getattr(hive, name)]
    if len(given) > 1:
        return "hive.server_password and hive.server_password_file: expected only one of them"
    if given and hive.server_auth not in PASSWORD_AUTHS:
        return f"hive.{given[0]}: expected hive.server_auth LDAP or CUSTOM beside it, found {hive.server_auth}"
    if hive.server_auth in PASSWORD_AUTHS and not (given and hive.server_user):
        return f"hive.server_auth {hive.server_auth}: expected hive.server_user and hive.server_password_file beside it"
    if hive.server_auth == KERBEROS and hive.server_user:
        return "hive.server_user: expected none with hive.server_auth KERBEROS, whose ticket says who it is"
    return ""


def _password(hive: HiveSettings) -> str:
    if not hive.server_password_file:
        return hive.server_password
    path = Path(hive.server_password_file).expanduser()
    try:
        password = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SettingsError(f"hive.server_password_file: cannot read {path}: {reason}") from error
    if not password:
        raise SettingsError(f"hive.server_password_file: expected a password in {path}, found nothing")
    return password
