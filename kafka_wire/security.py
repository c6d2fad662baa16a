"""How a client of Kafka brokers knows who they are, and proves who it is: TLS and SASL.

The words are those of Kafka's own `security.protocol` and `sasl.mechanism`; the mechanisms are kafka-python's, and
librdkafka's for producers and consumers. A value may travel to other machines and into logs: `for_tasks` names files
and holds no secret. A secret is read for each connection, from its file, else from the environment, so that what is
renewed counts without a restart.
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
TOKEN_KEPT_S = 60.0  # whoever writes the file replaces it before the token in it expires

VARIABLES = {"kafka.password": "HEADRACE__KAFKA__PASSWORD", "kafka.key_password": "HEADRACE__KAFKA__KEY_PASSWORD"}
"""Where a process finds a secret that neither its settings nor a file have."""


class UnusableSecurity(ValueError):
    """A file cannot be read, or is not what it should be; the message names it and never what is in it."""


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """File names are PEM files; "" for `ca_file` trusts the system's authorities, for `key_file` says that the key is
    in `certificate_file`. Host names and certificates are always checked. `service` is the brokers' Kerberos service.
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

    def for_tasks(self) -> KafkaSecurity:
        """Without secrets: who gets it reads them from the files or from its environment."""
        return dataclasses.replace(self, password="", key_password="")

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            UnusableSecurity.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise UnusableSecurity(f"kafka.ca {self.ca_file} cannot be used: {_cause(error)}") from error
        if self.certificate_file:
            # A function instead of the text, since OpenSSL would otherwise ask at the terminal for a missing one.
            def key_password() -> str:
                return _secret("kafka.key_password", self.key_password, self.key_password_file)

            try:
                context.load_cert_chain(self.certificate_file, self.key_file or None, key_password)
            except UnusableSecurity:
                raise
            except (OSError, ValueError) as error:
                raise UnusableSecurity(
                    f"kafka.certificate {self.certificate_file} cannot be used: {_cause(error)}"
                ) from error
        return context

    def sasl_options(self) -> dict[str, Any]:
        """What kafka-python's mechanisms take; the secret is read now.

        Raises:
            UnusableSecurity.
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
        """A conversation with one broker, of kafka-python's `SaslMechanism`.

        Raises:
            UnusableSecurity.
        """
        options = self.sasl_options()
        try:
            return SASL_MECHANISMS[self.mechanism](host=host, **options)
        except (RuntimeError, OSError) as error:  # GSSAPI: no library, or no ticket
            raise UnusableSecurity(f"{self.mechanism} cannot be used here: {error}") from error

    def client_options(self) -> dict[str, Any]:
        """The same for kafka-python's own clients, which read a password once, when they are made.

        Raises:
            UnusableSecurity.
        """
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.uses_tls:
            options["ssl_context"] = self.context()
        return options | (self.sasl_options() if self.uses_sasl else {})

    def librdkafka_options(self) -> dict[str, Any]:
        """The same for librdkafka's clients. A token is read whenever the one at hand is old; `oauth_cb` then gives its
        end of life too, in seconds since 1970.

        Raises:
            UnusableSecurity.
        """
        options: dict[str, Any] = {"security.protocol": self.protocol}
        if self.uses_tls:
            self.context()  # says which file cannot be used, in our words
            known = ssl.get_default_verify_paths()
            options["ssl.ca.location"] = self.ca_file or known.cafile or known.capath or "probe"
            if self.certificate_file:
                options["ssl.certificate.location"] = self.certificate_file
                options["ssl.key.location"] = self.key_file or self.certificate_file
                with contextlib.suppress(UnusableSecurity):  # the key has none, or `context` would have said so
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
                options["oauth_cb"] = lambda _: (token.token(), time.time() + TOKEN_KEPT_S)
            else:
                options["sasl.kerberos.service.name"] = self.service
        return options


UNSECURED = KafkaSecurity()


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Read for every connection, since whoever writes such files replaces them before the token expires."""

    def __init__(self, path: str) -> None:
        self._path = path

    def token(self) -> str:
        return _read("kafka.token_file", self._path)


def _scram_name(user: str) -> str:
    """With what SCRAM would take for its own signs (RFC 5802, saslname), which kafka-python leaves to its caller."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _secret(key: str, given: str, path: str) -> str:
    if given:
        return given
    if path:
        return _read(f"{key}_file", path)
    found = os.environ.get(VARIABLES[key], "")
    if not found:
        raise UnusableSecurity(
            f"no {key}: neither {key}_file, on every machine that runs tasks, nor the variable {VARIABLES[key]} says it"
        )
    return found


def _read(key: str, path: str) -> str:
    """The one line of a file of a secret."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            found = file.read(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableSecurity(f"{key} {path} cannot be read: {_cause(error)}") from None
    if not found or "\n" in found:
        raise UnusableSecurity(f"{key} {path}: expected one line")
    return found


def _cause(error: Exception) -> str:
    """Without the path, which the sentence has, and never with what stands in a file."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is no PEM file of that kind"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not what it should be"
