"""`headrace registry user`. Also checks the settings of users, tokens and certificates before `serve` starts."""

from __future__ import annotations

import argparse
import getpass
import logging
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.command import EXIT_OK, CommandError, examples
from headrace.settings import ConsoleSettings, GatewaySettings, RegistrySettings, Settings
from headrace.settings.values import is_loopback

if TYPE_CHECKING:
    from headrace.registry.access.authenticator import RegistryUsersFile
    from headrace.registry.access.tokens import TokenVerifier
    from headrace.registry.api.listening import ServerCertificate
    from headrace.registry.api.mtls import MtlsListener

logger = logging.getLogger(__name__)

NO_LOG = "off"
AUDIT_LOG_NAME = "registry-audit.jsonl"


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `user` to the verbs of `headrace registry`."""
    user = verbs.add_parser(
        "user",
        help="print a line for the users file",
        description="Prints the line that defines a user in the file registry.users, with a hash of the password. A "
        "terminal prompts for the password; otherwise it is the first line of standard input. The file "
        "also has lines `grant NAME read|write|admin PATTERN`, where PATTERN is a subject with * as a "
        "wildcard, `grant NAME payload PATTERN` for the messages of topics in the console, and "
        "`grant NAME sql-read|sql-write *` for the SQL endpoint of `headrace up`.",
        epilog=examples("registry user shop >> /etc/headrace/users"),
    )
    user.add_argument("name", metavar="NAME", help="the user's name")
    user.set_defaults(run_verb=print_user)


def print_user(args: argparse.Namespace) -> int:
    from headrace.registry.access.passwords import PASSWORD_BYTES_MAX, SALT_BYTES, PasswordHash
    from headrace.registry.access.users import user_line

    password = read_password()
    if not 0 < len(password.encode("utf-8", "surrogateescape")) <= PASSWORD_BYTES_MAX:
        raise CommandError(f"the password is empty or longer than {PASSWORD_BYTES_MAX} bytes; choose another password")
    try:
        print(user_line(args.name, PasswordHash.of(password, secrets.token_bytes(SALT_BYTES))))
    except ValueError as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def check_access(settings: RegistrySettings) -> None:
    """Checks the settings of users, addresses, log files and the rate limit. Logs a warning if passwords would be sent
    unencrypted over a network.

    Raises:
        CommandError: anonymous clients from a network could change schemas and the setting that permits it is not set,
            a file cannot be used, or another setting is invalid or missing.
    """
    from headrace.registry.errors import TokenKeysUnusable, UsersFileUnusable
    from headrace.registry.operation.log_file import LogFile

    is_local = is_loopback(settings.listen.host)
    if not settings.users and not is_local and settings.allow_unauthenticated_from != "network":
        raise CommandError(
            f"registry.listen is {settings.listen}, where anonymous clients could change schemas; set "
            "registry.users (--users) to a file with users, or set registry.allow_unauthenticated_from to network"
        )
    if settings.users and not is_local and not settings.tls_certificate:
        logger.warning("passwords_sent_unencrypted, set registry.tls_certificate listen=%s", settings.listen)
    try:
        users_of(settings)
    except (UsersFileUnusable, TokenKeysUnusable) as error:
        raise CommandError(str(error)) from error
    try:
        if settings.access_log:
            LogFile(settings.access_log, "access_log").close()
    except OSError as error:
        raise CommandError(
            f"registry.access_log {settings.access_log} cannot be written: {error.strerror}; choose another file"
        ) from error
    if settings.requests_per_second_max < 0:
        raise CommandError(
            f"registry.requests_per_second_max is {settings.requests_per_second_max}, expected 0 (no limit) or more"
        )


def audit_log_target(settings: Settings) -> str:
    """Returns the file of the registry's audit log, "-" for standard error, or "" if it is turned off."""
    from headrace.registry.operation.audit_log import STANDARD_ERROR

    configured = settings.registry.audit_log
    if configured in (NO_LOG, STANDARD_ERROR):
        return "" if configured == NO_LOG else configured
    return configured or str(settings.data_dir.resolve() / "logs" / AUDIT_LOG_NAME)


def check_audit_log(settings: Settings) -> None:
    """Creates the file of the audit log if it does not exist, and for the default file its directory.

    Raises:
        CommandError: the file cannot be written.
    """
    from headrace.registry.operation.audit_log import STANDARD_ERROR, audit_file

    target = audit_log_target(settings)
    try:
        if not settings.registry.audit_log:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        if target not in ("", STANDARD_ERROR):
            audit_file(Path(target)).check()
    except OSError as error:
        raise CommandError(
            f"registry.audit_log {target} cannot be written: {error.strerror}; choose another file, - for standard "
            "error, or off"
        ) from error


def users_of(settings: RegistrySettings) -> RegistryUsersFile | None:
    """Returns the users and the keys that verify their tokens, or None if no users file is set: then all clients may do
    everything.

    Raises:
        CommandError: a setting requires another setting that is not set.
        UsersFileUnusable, TokenKeysUnusable: a file cannot be used.
    """
    from headrace.registry.access.authenticator import RegistryUsersFile

    if settings.token_keys and not settings.users:
        raise CommandError("registry.token_keys needs registry.users: the file with the grants of roles and users")
    if settings.token_keys and not (settings.token_issuer and settings.token_audience):
        raise CommandError(
            "registry.token_keys needs registry.token_issuer and registry.token_audience: without them, tokens issued "
            "for another service would be valid here"
        )
    if not settings.users:
        return None
    return RegistryUsersFile(Path(settings.users), tokens=_token_verifier(settings) if settings.token_keys else None)


def _token_verifier(settings: RegistrySettings) -> TokenVerifier:
    # The libraries of tokens take 10 MB in each process.
    from headrace.registry.access.tokens import TokenKeys, TokenRules, TokenVerifier

    rules = TokenRules(settings.token_issuer, settings.token_audience, settings.user_claim, settings.roles_claim)
    return TokenVerifier(TokenKeys(settings.token_keys), rules)


def mtls_listener(settings: RegistrySettings, tls: ServerCertificate | None) -> MtlsListener | None:
    """Returns the address and files of the additional port that accepts only clients with certificates (mTLS), or None
    if `tls_client_listen` is not set.

    Args:
        tls: the server's certificate and key.

    Raises:
        CommandError: a required setting is missing, the address is invalid or has port 0, or a file cannot be used.
    """
    from headrace.registry.api.mtls import MtlsListener
    from headrace.settings import Address

    if not settings.tls_client_listen:
        return None
    if tls is None or not settings.tls_client_ca or not settings.users:
        raise CommandError(
            "registry.tls_client_listen needs registry.tls_certificate, registry.tls_client_ca and registry.users"
        )
    try:
        address = Address.parse(settings.tls_client_listen)
        port = MtlsListener(address.host, address.port, tls.certificate, tls.key, Path(settings.tls_client_ca))
        port.context()
    except ValueError as error:
        raise CommandError(f"registry.tls_client_listen {settings.tls_client_listen}: {error}") from error
    except OSError as error:
        cause = getattr(error, "reason", None) or error.strerror or str(error)
        raise CommandError(
            f"registry.tls_client_ca {settings.tls_client_ca} cannot be used: {cause}; expected a PEM file with the "
            "certificates of the trusted authorities"
        ) from error
    if not address.port:
        raise CommandError(f"registry.tls_client_listen {settings.tls_client_listen} has port 0; choose another port")
    return port


def tls_of(settings: RegistrySettings | ConsoleSettings | GatewaySettings) -> ServerCertificate | None:
    """Returns the certificate and key of a server, or None without TLS.

    Raises:
        CommandError: the certificate or its key cannot be used.
    """
    from headrace.registry.api.listening import ServerCertificate

    if not settings.tls_certificate:
        return None
    section = type(settings).__name__.removesuffix("Settings").lower()
    certificate, key = settings.tls_certificate, settings.tls_key or settings.tls_certificate
    tls = ServerCertificate(Path(certificate), Path(key))
    try:
        tls.check()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        cause = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise CommandError(
            f"{section}.tls_certificate {certificate} with key {key} cannot be used: {cause}; expected the PEM files "
            "of a certificate and its unencrypted key"
        ) from error
    return tls


def read_password() -> str:
    """Reads a password: from a terminal with confirmation, or from the first line of standard input.

    Raises:
        CommandError: the confirmation differs.
    """
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise CommandError("the passwords differ; try again")
    return password
