"""Listeners of an Apache Kafka broker with TLS or authentication, and the settings of their clients."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from headrace.settings import KafkaSettings
from support.certificates import Authority

USER, PASSWORD = "loader", "p4ss w$rd!"
LISTENERS = {"TLS": "SSL", "MTLS": "SSL", "LOGIN": "SASL_SSL", "CLEAR": "SASL_PLAINTEXT"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = 4_000
"""Time after which the broker ends the connection of a client that has not logged in again."""


class KafkaSecurity:
    """Certificates, users and listeners of a broker. Of the listeners, `TLS` needs no authentication, `MTLS` a
    certificate, `LOGIN` a user over TLS, and `CLEAR` a user without TLS."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        certificate, key = self.authority.certificate("broker")
        self._keystore = directory / "keystore.pem"
        self._keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        self.certificate, self.key = self.authority.certificate("client")
        self.encrypted_certificate, self.encrypted_key = self.authority.certificate("encrypted", key_password="k3y")
        self.password_file = directory / "password"
        self.password_file.write_text(PASSWORD + "\n", encoding="utf-8")
        self.token_file = directory / "token"
        self.token_file.write_text(token(), encoding="ascii")

    def properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.ca_file,
            "listener.name.mtls.ssl.client.auth": "required",
            "connections.max.reauth.ms": SESSION_MS,
            # Other users have only the permissions that a test grants them.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER};User:CN=client;User:CN=encrypted",
        }
        for listener, mechanisms in (("login", MECHANISMS), ("clear", ("SCRAM-SHA-512",))):
            prefix = f"listener.name.{listener}"
            properties |= {
                f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms),
                f"{prefix}.plain.sasl.jaas.config": f"{_module('plain.Plain')} user_{USER}={_quoted(PASSWORD)};",
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_module('scram.Scram')};",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_module('scram.Scram')};",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{_module('oauthbearer.OAuthBearer')} "
                'unsecuredLoginStringClaim_sub="admin";',
            }
        return properties

    def format_arguments(self) -> list[str]:
        """Returns arguments of the tool that formats the broker's storage, with which it stores the SCRAM users."""
        user = f"name={USER},password={_quoted(PASSWORD)}"
        return [word for name in ("SCRAM-SHA-256", "SCRAM-SHA-512") for word in ("--add-scram", f"{name}=[{user}]")]

    def client(self, listener: str, address: str, mechanism: str = "", **changes: Any) -> KafkaSettings:
        """Returns the settings with which a client can use a listener, changed by the given settings."""
        values: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": LISTENERS[listener]}
        if listener != "CLEAR":
            values["ca"] = str(self.authority.ca_file)
        if listener == "MTLS":
            values |= {"certificate": str(self.certificate), "key": str(self.key)}
        if mechanism:
            values["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            values["token_file"] = str(self.token_file)
        elif mechanism:
            values |= {"user": USER, "password_file": str(self.password_file)}
        return KafkaSettings(**{**values, **changes})


def token(subject: str = USER, lifetime_s: int = 3600) -> str:
    """Returns an unsigned JSON web token; a broker without a configured validator accepts it."""
    now = int(time.time())
    parts = {"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s}
    return "".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)


def _module(name: str) -> str:
    package, _, module = name.rpartition(".")
    return f"org.apache.kafka.common.security.{package}.{module}LoginModule required"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
