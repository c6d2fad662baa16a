"""TLS and SASL of Kafka clients.

Names are the values of Kafka's `security.protocol` and `sasl.mechanism`. kafka-python implements the mechanisms for its
connections, librdkafka for producers and consumers. `without_secrets` returns a value that may be logged and sent to
other machines: it contains file names, but no secrets. `BrokerConnection` reads secrets in a file or the environment
for each connection, so that renewed ones are used without a restart. Clients of kafka-python and librdkafka read a
password when they are created, and a token repeatedly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.sasl.oauth import AbstractTokenProvider

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
WITH_PASSWORD = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
SECRET_BYTES_MAX = 64 * 1024
TOKEN_LIFETIME_S = 60.0  # reread interval; the file is replaced before its token expires

VARIABLES = {"kafka.password": "HEADRACE__KAFKA__PASSWORD", "kafka.key_password": "HEADRACE__KAFKA__KEY_PASSWORD"}
"""Environment variables of secrets that are neither in the settings nor in a file."""


class SecurityConfigError(ValueError):
    """A security file, secret or library is missing or unusable. The message names the setting, but never contains a
    secret."""


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """TLS and SASL settings of a connection. With TLS, host names and certificates are always verified.

    Attributes:
        protocol: `security.protocol` of Kafka's clients, such as SASL_SSL.
        ca_file: PEM file of trusted authorities; "" trusts those of the system.
        key_file: PEM file of the private key; "" if `certificate_file` contains it.
        mechanism: SASL mechanism, such as PLAIN; "" without SASL.
        service: Kerberos service name of the brokers.
    """

    protocol: str = PLAINTEXT
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    key_password_file: str = ""
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    token_file: str = ""
    service: str = "kafka"

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    def without_secrets(self) -> KafkaSecurity:
        """Returns a copy of these settings without secrets. The process that uses the copy reads them from the files or
        from its environment."""
        return dataclasses.replace(self, password="", key_password="")

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for connections, with the configured authorities and client certificate.

        Raises:
            SecurityConfigError: a certificate or key file is unusable, or the key's password is missing.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise SecurityConfigError(f"kafka.ca {self.ca_file} cannot be used: {_cause(error)}") from error
        if self.certificate_file:
            # A function, because OpenSSL prompts at the terminal for a missing password otherwise.
            def key_password() -> str:
                return _secret("kafka.key_password", self.key_password, self.key_password_file)

            try:
                context.load_cert_chain(self.certificate_file, self.key_file or None, key_password)
            except SecurityConfigError:
                raise
            except (OSError, ValueError) as error:
                raise SecurityConfigError(
                    f"kafka.certificate {self.certificate_file} cannot be used: {_cause(error)}"
                ) from error
        return context

    def sasl_options(self) -> dict[str, Any]:
        """Returns the SASL options of kafka-python; reads the password. A token is read later, for each connection.

        Raises:
            SecurityConfigError: the password is missing or unreadable.
        """
        options: dict[str, Any] = {"sasl_mechanism": self.mechanism}
        if self.mechanism in WITH_PASSWORD:
            options["sasl_plain_username"] = self.user if self.mechanism == "PLAIN" else _scram_name(self.user)
            options["sasl_plain_password"] = _secret("kafka.password", self.password, self.password_file)
        elif self.mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _TokenFile(self.token_file)
        else:
            options["sasl_kerberos_service_name"] = self.service
        return options

    def sasl(self, host: str) -> Any:
        """Returns a `SaslMechanism` of kafka-python for the connection to the broker with this host name.

        Raises:
            SecurityConfigError: the password is missing or unreadable, or the mechanism is unusable.
        """
        options = self.sasl_options()
        try:
            return SASL_MECHANISMS[self.mechanism](host=host, **options)
        except (RuntimeError, OSError) as error:  # GSSAPI: missing library or ticket
            raise SecurityConfigError(
                f"SASL mechanism {self.mechanism} cannot be used on this machine: {error}"
            ) from error

    def client_options(self) -> dict[str, Any]:
        """Returns the options of kafka-python's clients, which read a password only at creation.

        Raises:
            SecurityConfigError: a file or secret is unusable.
        """
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.uses_tls:
            options["ssl_context"] = self.context()
        return options | (self.sasl_options() if self.uses_sasl else {})

    def librdkafka_options(self) -> dict[str, Any]:
        """Returns the options of librdkafka's clients.

        librdkafka rereads a token before it expires. `oauth_cb` returns the token and, as its expiry, the time after
        TOKEN_LIFETIME_S from now, in seconds since 1970.

        Raises:
            SecurityConfigError: a file or secret is unusable.
        """
        options: dict[str, Any] = {"security.protocol": self.protocol}
        if self.uses_tls:
            self.context()  # raises errors that name the unusable file
            known = ssl.get_default_verify_paths()
            options["ssl.ca.location"] = self.ca_file or known.cafile or known.capath or "probe"
            if self.certificate_file:
                options["ssl.certificate.location"] = self.certificate_file
                options["ssl.key.location"] = self.key_file or self.certificate_file
                with contextlib.suppress(
                    SecurityConfigError
                ):  # the key has no password, otherwise `context` would have failed
                    options["ssl.key.password"] = _secret(
                        "kafka.key_password", self.key_password, self.key_password_file
                    )
        if self.uses_sasl:
            options["sasl.mechanism"] = self.mechanism
            if self.mechanism in WITH_PASSWORD:
                options["sasl.username"] = self.user
                options["sasl.password"] = _secret("kafka.password", self.password, self.password_file)
            elif self.mechanism == "OAUTHBEARER":
                token = _TokenFile(self.token_file)
                options["oauth_cb"] = lambda _: (token.token(), time.time() + TOKEN_LIFETIME_S)
            else:
                options["sasl.kerberos.service.name"] = self.service
        return options


UNSECURED = KafkaSecurity()


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A file with an OAuth token, which kafka-python reads for every connection and librdkafka about every
    TOKEN_LIFETIME_S. The program that writes it must replace the token before it expires."""

    def __init__(self, path: str) -> None:
        self._path = path

    def token(self) -> str:
        return _read("kafka.token_file", self._path)


def _scram_name(user: str) -> str:
    """Escapes `=` and `,` of a user name (RFC 5802, saslname), which kafka-python does not do."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _secret(key: str, given: str, path: str) -> str:
    if given:
        return given
    if path:
        return _read(f"{key}_file", path)
    found = os.environ.get(VARIABLES[key], "")
    if not found:
        raise SecurityConfigError(
            f"{key} is missing; set {key}_file to a file that exists on every machine that runs tasks, or set the "
            f"environment variable {VARIABLES[key]}"
        )
    return found


def _read(key: str, path: str) -> str:
    """Returns the only line of the file at `path`, which contains a secret. `key` is the setting that names the file,
    for messages."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            found = file.read(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityConfigError(f"{key} {path} cannot be read: {_cause(error)}") from None
    if not found or "\n" in found:
        raise SecurityConfigError(f"{key} {path}: expected exactly one line")
    return found


def _cause(error: Exception) -> str:
    """Returns the reason in an error about a certificate, key or secret file, without the file's path and without any
    of its content."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not a PEM file with a valid certificate or key"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "its content is invalid"
