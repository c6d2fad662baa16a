"""Builds connection security and options of clients from the settings `kafka.…`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationFailed, KafkaError
from headrace.kafka_wire.security import UNSECURED, VARIABLES, WITH_PASSWORD, KafkaSecurity, SecurityConfigError
from headrace.settings import KafkaSettings, Settings, SettingsError
from headrace.settings.addresses import resolve_bootstrap_servers
from headrace.settings.loading import trusted_credentials

logger = logging.getLogger(__name__)

LOGIN_TIMEOUT_S = 5.0
CREDENTIALS = tuple(f"kafka.{name}" for name in ("user", "password", "password_file", "token_file"))


def kafka_security(settings: Settings) -> KafkaSecurity:
    """Returns the TLS and SASL settings.

    Raises:
        SettingsError: settings contradict each other, one that others need is missing, or they would send credentials
            to brokers that only the settings file of the working directory names.
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
    if problem := _problem(kafka, security) or _untrusted_brokers(settings, security):
        raise SettingsError(problem)
    return security


class LoginRejected(Exception):
    """The TLS or SASL authentication of the brokers or of this client failed."""


def client_options(settings: Settings) -> dict[str, Any]:
    """Returns addresses and security options for kafka-python's clients.

    kafka-python retries a wrong password until its timeout, which locks accounts. So one connection of this package
    checks the login first, unless no TLS or SASL is set; if no broker responds, the login remains unchecked.

    Raises:
        SettingsError: see `kafka_security`, or a file of the settings is unusable.
        LoginRejected: the login failed.
    """
    security, servers = kafka_security(settings), resolve_bootstrap_servers(settings)
    try:
        options = security.client_options()
    except SecurityConfigError as error:
        raise SettingsError(str(error)) from error
    if security != UNSECURED:
        try:
            with KafkaCluster(servers, LOGIN_TIMEOUT_S, security=security) as cluster:
                cluster.metadata(())
        except AuthenticationFailed as error:
            raise LoginRejected(str(error)) from error
        except KafkaError as error:
            logger.debug(
                "login_not_checked error=%s", error
            )  # kafka-python waits for unavailable brokers and reports them
    return {"bootstrap_servers": servers, **options}


def secrets_in_environment(settings: Settings) -> dict[str, str]:
    """Returns the secrets to pass to tasks on this machine in environment variables, by variable name. Secrets in files
    are not among them."""
    kafka = settings.kafka
    found = {"kafka.password": kafka.password, "kafka.key_password": kafka.key_password}
    return {VARIABLES[key]: secret for key, secret in found.items() if secret}


def _file(name: str) -> str:
    """Returns the absolute path of a file whose `name` comes from the settings, because tasks have other working
    directories; "" stays ""."""
    return str(Path(name).expanduser().absolute()) if name else ""


def _problem(kafka: KafkaSettings, security: KafkaSecurity) -> str:
    """Returns a description of the first contradiction or missing setting in the TLS and SASL settings, or "" if there
    is none.

    Args:
        kafka: the section `[kafka]` of the settings.
        security: the TLS and SASL settings made from this section.
    """
    tls = [name for name in ("ca", "certificate", "key") if getattr(kafka, name)]
    if tls and not security.uses_tls:
        return f"kafka.{tls[0]}: needs kafka.security_protocol SSL or SASL_SSL, found {security.protocol}"
    if kafka.key and not kafka.certificate:
        return "kafka.key: needs kafka.certificate"
    if security.uses_sasl != bool(security.mechanism):
        return f"kafka.security_protocol {security.protocol}: " + (
            "needs kafka.sasl_mechanism" if security.uses_sasl else "does not allow kafka.sasl_mechanism"
        )
    if security.mechanism in WITH_PASSWORD and not security.user:
        return f"kafka.sasl_mechanism {security.mechanism}: needs kafka.user"
    if security.mechanism == "OAUTHBEARER" and not security.token_file:
        return "kafka.sasl_mechanism OAUTHBEARER: needs kafka.token_file"
    for name in ("password", "key_password"):
        if getattr(kafka, name) and getattr(kafka, f"{name}_file"):
            return f"kafka.{name} and kafka.{name}_file: set only one of them"
    return ""


def _untrusted_brokers(settings: Settings, security: KafkaSecurity) -> str:
    """Returns an error text if credentials would go to brokers that only the working directory's settings file names,
    else "".

    Args:
        security: the TLS and SASL settings made from `settings`.
    """
    key = "kafka.bootstrap_servers" if settings.kafka.bootstrap_servers else "broker.listen"
    trusted = trusted_credentials(settings, CREDENTIALS)
    if not (security.uses_sasl and trusted) or key not in settings.keys_from_working_directory:
        return ""
    return (
        f"{key} is set in headrace.toml of the working directory, and {trusted[0]} is not, so that file could send "
        "your credentials to any host; set the brokers where you set the credentials "
        "(HEADRACE__KAFKA__BOOTSTRAP_SERVERS), or name the settings file (HEADRACE_CONFIG)"
    )
