"""How the settings `kafka.…` say that brokers are reached."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationRefused, KafkaError
from headrace.kafka_wire.security import UNSECURED, VARIABLES, WITH_PASSWORD, KafkaSecurity, UnusableSecurity
from headrace.settings import KafkaSettings, Settings, SettingsError
from headrace.settings.addresses import resolve_bootstrap_servers
from headrace.settings.trust import trusted_credentials

logger = logging.getLogger(__name__)

LOGIN_TIMEOUT_S = 5.0
CREDENTIALS = tuple(f"kafka.{name}" for name in ("user", "password", "password_file", "token_file"))


def kafka_security(settings: Settings) -> KafkaSecurity:
    """
    Raises:
        SettingsError: the settings contradict each other, or would send credentials to whom the working directory
        names.
    """
    kafka = settings.kafka
    security = KafkaSecurity(
        protocol=kafka.security_protocol,
        ca_file=_file(kafka.ca),
        certificate_file=_file(kafka.certificate),
        key_file=_file(kafka.key),
        key_password=kafka.key_password,
        key_password_file=_file(kafka.key_password_file),
        mechanism=kafka.sasl_mechanism,
        user=kafka.user,
        password=kafka.password,
        password_file=_file(kafka.password_file),
        token_file=_file(kafka.token_file),
        service=kafka.kerberos_service,
    )
    if problem := _problem(kafka, security) or _misplaced_trust(settings, security):
        raise SettingsError(problem)
    return security


class NotLetIn(Exception):
    """The brokers do not take this client for who it should be, or the other way round."""


def client_options(settings: Settings) -> dict[str, Any]:
    """Where the brokers are and how they are reached, for kafka-python's own clients.

    These try a wrong password again and again until their time is over, which locks accounts. So whoever is let in is
    found out before, by one connection of ours.

    Raises:
        SettingsError: see `kafka_security`; or the settings name a file that cannot be used.
        NotLetIn.
    """
    security, servers = kafka_security(settings), resolve_bootstrap_servers(settings)
    try:
        options = security.client_options()
    except UnusableSecurity as error:
        raise SettingsError(str(error)) from error
    if security != UNSECURED:
        try:
            with KafkaCluster(servers, LOGIN_TIMEOUT_S, security=security) as cluster:
                cluster.metadata(())
        except AuthenticationRefused as error:
            raise NotLetIn(str(error)) from error
        except KafkaError as error:
            logger.debug("not_tried error=%s", error)  # the client waits for brokers that are down, and says so
    return {"bootstrap_servers": servers, **options}


def secrets_in_environment(settings: Settings) -> dict[str, str]:
    """What tasks on this machine find in their environment where it stands in no file of its own."""
    kafka = settings.kafka
    found = {"kafka.password": kafka.password, "kafka.key_password": kafka.key_password}
    return {VARIABLES[key]: secret for key, secret in found.items() if secret}


def _file(name: str) -> str:
    """Absolute, since tasks have directories of their own."""
    return str(Path(name).expanduser().absolute()) if name else ""


def _problem(kafka: KafkaSettings, security: KafkaSecurity) -> str:
    """What contradicts what, "" for nothing."""
    tls = [name for name in ("ca", "certificate", "key") if getattr(kafka, name)]
    if tls and not security.uses_tls:
        return f"kafka.{tls[0]}: expected kafka.security_protocol SSL or SASL_SSL beside it, found {security.protocol}"
    if kafka.key and not kafka.certificate:
        return "kafka.key: expected kafka.certificate beside it"
    if security.uses_sasl != bool(security.mechanism):
        return (
            f"kafka.security_protocol {security.protocol}: expected "
            + ("a kafka.sasl_mechanism" if security.uses_sasl else "no kafka.sasl_mechanism")
            + " beside it"
        )
    if security.mechanism in WITH_PASSWORD and not security.user:
        return f"kafka.sasl_mechanism {security.mechanism}: expected kafka.user beside it"
    if security.mechanism == "OAUTHBEARER" and not security.token_file:
        return "kafka.sasl_mechanism OAUTHBEARER: expected kafka.token_file beside it"
    for name in ("password", "key_password"):
        if getattr(kafka, name) and getattr(kafka, f"{name}_file"):
            return f"kafka.{name} and kafka.{name}_file: expected only one of them"
    return ""


def _misplaced_trust(settings: Settings, security: KafkaSecurity) -> str:
    """What the working directory's own settings file would have sent to the brokers that it names, "" for nothing."""
    place = "kafka.bootstrap_servers" if settings.kafka.bootstrap_servers else "broker.listen"
    kept = trusted_credentials(settings, CREDENTIALS)
    if not (security.uses_sasl and kept) or place not in settings.keys_from_working_directory:
        return ""
    return (
        f"{place} is set in the working directory's headrace.toml and {kept[0]} is not, so that the credentials would "
        f"go "
        "to whom that file names: expected both from one source; give the brokers beside the credentials "
        "(HEADRACE__KAFKA__BOOTSTRAP_SERVERS), or name the file yourself (HEADRACE_CONFIG)"
    )
