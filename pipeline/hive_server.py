"""Builds the address of a HiveServer2 from the settings `hive.server_…`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from headrace.hive_ddl.executors.hiveserver import KERBEROS, PASSWORD_AUTHS, HiveServerAddress
from headrace.settings import HiveSettings, Settings, SettingsError


def hive_server_address(settings: Settings) -> HiveServerAddress:
    """Returns the address and credentials of the configured HiveServer2.

    Raises:
        SettingsError: the settings contradict each other, or the password file cannot be read or is empty.
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
    """Returns the first contradiction between the settings `hive.server_…`, or ""."""
    password_keys = [name for name in ("server_password", "server_password_file") if getattr(hive, name)]
    if len(password_keys) > 1:
        return "hive.server_password and hive.server_password_file: expected only one of them"
    if password_keys and hive.server_auth not in PASSWORD_AUTHS:
        return f"hive.{password_keys[0]}: requires hive.server_auth LDAP or CUSTOM, found {hive.server_auth}"
    if hive.server_auth in PASSWORD_AUTHS and not (password_keys and hive.server_user):
        return f"hive.server_auth {hive.server_auth}: requires hive.server_user and hive.server_password_file"
    if hive.server_auth == KERBEROS and hive.server_user:
        return "hive.server_user: must be empty with hive.server_auth KERBEROS, where the ticket identifies the user"
    return ""


def _password(hive: HiveSettings) -> str:
    if not hive.server_password_file:
        return hive.server_password
    path = Path(hive.server_password_file).expanduser()
    try:
        password = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not valid UTF-8"
        raise SettingsError(
            f"hive.server_password_file: cannot read {path}: {reason}; check the file and its permissions"
        ) from error
    if not password:
        raise SettingsError(f"hive.server_password_file: {path} is empty, expected a password")
    return password
