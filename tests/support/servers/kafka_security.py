"""Listeners of an Apache Kafka broker that ask who is there, and the settings of clients that they let in."""

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
"""After which a broker ends a connection that has not logged in again."""


class KafkaSecurity:
    """`TLS` trusts whoever trusts it, `MTLS` wants a certificate, `LOGIN` and `CLEAR` a user."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        certificate, key = self.authority.certificate("broker")
        self._keystore = directory / "keystore.pem"
        self._keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        self.certificate, self.key = self.authority.certificate("client")
        self.sealed, self.sealed_key = self.authority.certificate("sealed", key_password="k3y")
        self.password_file = directory / "password"
        self.password_file.write_text(PASSWORD + "\n", encoding="utf-8")
        self.token_file = directory / "token"
        self.token_file.write_text(token(), encoding="ascii")

    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.ca_file,
            "listener.name.mtls.ssl.client.auth": "required",
            "connections.max.reauth.ms": SESSION_MS,
        }
        for listener, mechanisms in (("login", MECHANISMS), ("clear", ("SCRAM-SHA-512",))):
            at = f"listener.name.{listener}"
            found |= {
                f"{at}.sasl.enabled.mechanisms": ",".join(mechanisms),
                f"{at}.plain.sasl.jaas.config": f"{_module('plain.Plain')} user_{USER}={_quoted(PASSWORD)};",
                f"{at}.scram-sha-256.sasl.jaas.config": f"{_module('scram.Scram')};",
                f"{at}.scram-sha-512.sasl.jaas.config": f"{_module('scram.Scram')};",
                f"{at}.oauthbearer.sasl.jaas.config": f"{_module('oauthbearer.OAuthBearer')} "
                'unsecuredLoginStringClaim_sub="admin";',
            }
        return found

    def format_arguments(self) -> list[str]:
        """Of the tool that makes the broker's storage: the users that SCRAM knows."""
        known = f"name={USER},password={_quoted(PASSWORD)}"
        return [word for name in ("SCRAM-SHA-256", "SCRAM-SHA-512") for word in ("--add-scram", f"{name}=[{known}]")]

    def client(self, listener: str, address: str, mechanism: str = "", **changes: Any) -> KafkaSettings:
        """The settings of a client that is let in, but for the changes."""
        given: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": LISTENERS[listener]}
        if listener != "CLEAR":
            given["ca"] = str(self.authority.ca_file)
        if listener == "MTLS":
            given |= {"certificate": str(self.certificate), "key": str(self.key)}
        if mechanism:
            given["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            given["token_file"] = str(self.token_file)
        elif mechanism:
            given |= {"user": USER, "password_file": str(self.password_file)}
        return KafkaSettings(**{**given, **changes})


def token(subject: str = USER, lifetime_s: int = 3600) -> str:
    """An unsecured JSON web token, as a broker takes it that has no validator of its own."""
    now = int(time.time())
    parts = {"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s}
    return "".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "." for part in parts)


def _module(name: str) -> str:
    package, _, module = name.rpartition(".")
    return f"org.apache.kafka.common.security.{package}.{module}LoginModule required"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
