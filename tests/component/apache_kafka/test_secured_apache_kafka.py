"""Producers, consumers, audit and loads with an Apache Kafka that requires TLS and authentication."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace import Consumer, Producer, ProducerError
from headrace.audit.row import Tier
from headrace.cli import main
from headrace.clients.errors import SourceUnavailable
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationFailed, KafkaError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.broker.audit_topic import audit_rows
from support.certificates import Authority
from support.checkout import ROOT
from support.permission_rows import CONSUMER, LOADER, LOADER_GROUP, OPERATOR, PRODUCER, READERS, TOPIC, rows_of
from support.servers.apache_kafka import ApacheKafka
from support.servers.kafka_security import MECHANISMS, PASSWORD, SESSION_MS, USER, KafkaSecurity, token

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SCHEMA = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}'
WAYS = [("TLS", ""), ("MTLS", ""), *(("LOGIN", name) for name in MECHANISMS), ("CLEAR", "SCRAM-SHA-512")]


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> KafkaSecurity:
    return KafkaSecurity(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="module")
def kafka(security: KafkaSecurity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(tmp_path_factory.mktemp("kafka") / "broker", security)
    yield broker
    broker.stop()


def settings_of(kafka: KafkaSettings, registry_url: str = "", data_dir: Path = Path("nowhere")) -> Settings:
    return Settings(data_dir=data_dir, registry=RegistrySettings(url=registry_url), kafka=kafka)


def topics_of_load(settings: KafkaSettings) -> set[str]:
    """Returns the topics that a load would read."""
    with KafkaCluster(
        settings.bootstrap_servers, timeout_s=10, security=kafka_security(settings_of(settings))
    ) as cluster:
        return set(cluster.metadata().topics)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_events_are_delivered_and_counted(
    kafka: ApacheKafka, security: KafkaSecurity, registry_url: str, tmp_path: Path, listener: str, mechanism: str
) -> None:
    client = security.client(listener, kafka.secured[listener], mechanism)
    settings = settings_of(client, registry_url, tmp_path / "data")
    topic = f"clicks-{listener}-{mechanism}"
    with Producer(settings, app="shop") as producer:
        for number in range(50):
            producer.send(topic, {"id": number}, schema=SCHEMA)
    with Consumer(settings, topics=[topic], until_end=True, app="reader") as consumer:
        assert sorted(message.value["id"] for message in consumer) == list(range(50))
    assert topic in topics_of_load(client)
    unsecured = dataclasses.replace(settings, kafka=KafkaSettings(bootstrap_servers=kafka.address))
    counts = {tier: sum(row.count for row in audit_rows(unsecured, topic) if row.tier is tier) for tier in Tier}
    assert (counts[Tier.PRODUCER], counts[Tier.CONSUMER]) == (50, 50)


def test_refused_login_is_reported_once(
    kafka: ApacheKafka, security: KafkaSecurity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrusted = Authority(tmp_path / "stranger", "another authority")
    certificate, key = untrusted.certificate("client")
    wrong = tmp_path / "wrong"
    wrong.write_text("not it")
    old = tmp_path / "old"
    old.write_text(token(lifetime_s=-10))
    monkeypatch.delenv("HEADRACE__KAFKA__PASSWORD", raising=False)
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("TLS", "", {"ca": str(untrusted.ca_file)}, "is not trusted"),
        ("TLS", "", {"ca": str(wrong)}, f"kafka.ca {wrong} cannot be used"),
        ("MTLS", "", {"certificate": "", "key": ""}, "check kafka.certificate"),
        ("MTLS", "", {"certificate": str(certificate), "key": str(key)}, "check kafka.certificate"),
        (
            "MTLS",
            "",
            {"certificate": str(security.encrypted_certificate), "key": str(security.encrypted_key)},
            "kafka.key_password is missing",
        ),
        ("LOGIN", "PLAIN", {"password_file": str(wrong)}, "rejected the login of user loader"),
        ("LOGIN", "SCRAM-SHA-256", {"password_file": str(wrong)}, "rejected the login of user loader"),
        ("LOGIN", "SCRAM-SHA-512", {"user": "nobody"}, "rejected the login of user nobody"),
        ("LOGIN", "SCRAM-SHA-512", {"password_file": ""}, "kafka.password is missing; set kafka.password_file"),
        ("LOGIN", "OAUTHBEARER", {"token_file": str(old)}, "rejected the login of this client with OAUTHBEARER"),
        ("LOGIN", "OAUTHBEARER", {"token_file": str(tmp_path / "none")}, "cannot be read: No such file or directory"),
        ("CLEAR", "PLAIN", {}, "supports SCRAM-SHA-512 here, not PLAIN; set kafka.sasl_mechanism"),
        ("CLEAR", "GSSAPI", {}, "SASL mechanism GSSAPI cannot be used on this machine: GSSAPI lib not found!"),
    ]
    for listener, mechanism, changes, message in cases:
        client = security.client(listener, kafka.secured[listener], mechanism, **changes)
        with pytest.raises(AuthenticationFailed) as caught:
            topics_of_load(client)
        assert message in str(caught.value), (listener, mechanism, changes)
        assert "\n" not in str(caught.value) and "not it" not in str(caught.value)


def test_security_protocol_mismatch_names_setting(kafka: ApacheKafka, security: KafkaSecurity) -> None:
    with pytest.raises(KafkaError, match=r"TLS handshake with broker .* failed \(.*\); check kafka\.security_protocol"):
        topics_of_load(security.client("TLS", kafka.address))
    with pytest.raises(KafkaError, match=r"connection to broker .* failed during ApiVersions"):
        topics_of_load(KafkaSettings(bootstrap_servers=kafka.secured["TLS"]))


def test_encrypted_key_and_password_from_environment(
    kafka: ApacheKafka, security: KafkaSecurity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__KAFKA__PASSWORD", PASSWORD)
    monkeypatch.setenv("HEADRACE__KAFKA__KEY_PASSWORD", "k3y")
    encrypted = {"certificate": str(security.encrypted_certificate), "key": str(security.encrypted_key)}
    topics_of_load(security.client("MTLS", kafka.secured["MTLS"], **encrypted))
    topics_of_load(security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-256", password_file=""))


def add_user(kafka: ApacheKafka, user: str) -> AdminClient:
    known = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion(user, known, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for done in admin.alter_user_scram_credentials([upsertion]).values():
        done.result(30)
    return admin


def user_of_role(kafka: ApacheKafka, role: str) -> str:
    """Adds a user with exactly the ACLs of docs/permissions.md for a role, and returns its name."""
    user = f"only-{role}"
    admin = add_user(kafka, user)
    acls = [
        AclBinding(
            ResourceType[row.resource[0].upper()],
            row.resource[1],
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        for row in rows_of(role)
        for operation in row.operations
    ]
    for done in admin.create_acls(acls).values():
        done.result(30)
    return user


@pytest.mark.spark
def test_documented_acls_suffice_for_clients_and_reports(
    kafka: ApacheKafka,
    security: KafkaSecurity,
    registry_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {
        role: settings_of(
            security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-256", user=user_of_role(kafka, role)),
            registry_url,
            tmp_path / role,
        )
        for role in (PRODUCER, CONSUMER, LOADER, OPERATOR)
    }
    with Producer(settings[PRODUCER], app=PRODUCER) as producer:  # creates both topics
        producer.send(TOPIC, {"id": 1}, schema=SCHEMA)
    with Consumer(settings[CONSUMER], topics=[TOPIC], group=READERS, idle_timeout_s=60, app=CONSUMER) as consumer:
        assert next(consumer).value == {"id": 1}
        consumer.commit()
    set_environment(monkeypatch, settings[LOADER])
    assert [(one["topic"], one["rows"]) for one in load(tmp_path)] == [(TOPIC, 1)], "the only topic it can see"
    unsecured = dataclasses.replace(settings[PRODUCER], kafka=KafkaSettings(bootstrap_servers=kafka.address))
    unsecured.data_dir.mkdir(exist_ok=True)
    assert {row.application for row in audit_rows(unsecured, TOPIC)} == {PRODUCER, CONSUMER}
    set_environment(monkeypatch, settings[OPERATOR])
    for words, expected in (
        (["broker", "topics"], TOPIC),
        (["broker", "groups"], LOADER_GROUP),
        (["audit", "report"], '"acknowledged": 1'),
    ):
        capsys.readouterr()
        main([*words, "--format", "json"])
        assert expected in capsys.readouterr().out, words


def load(tmp_path: Path) -> list[dict[str, Any]]:
    """Runs a load with the settings of the environment, and returns the loaded topics."""
    command = [sys.executable, "-m", "headrace", "load", "--master", "local[2]", "--format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: list[dict[str, Any]] = json.loads(done.stdout)["loaded"]
    return loaded


def set_environment(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    kafka = settings.kafka
    values = {
        "DATA_DIR": settings.data_dir,
        "REGISTRY__URL": settings.registry.url,
        **{f"KAFKA__{key.upper()}": getattr(kafka, key) for key in ("bootstrap_servers", "security_protocol", "ca")},
        **{f"KAFKA__{key.upper()}": getattr(kafka, key) for key in ("sasl_mechanism", "user", "password_file")},
    }
    for key, value in values.items():
        monkeypatch.setenv(f"HEADRACE__{key}", str(value))


def test_user_names_with_scram_special_characters_log_in(kafka: ApacheKafka, security: KafkaSecurity) -> None:
    user = "team=a,b"
    add_user(kafka, user)
    topics_of_load(security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-256", user=user))


def test_expired_sasl_session_is_renewed(kafka: ApacheKafka, security: KafkaSecurity) -> None:
    client = security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-512")
    with KafkaCluster(client.bootstrap_servers, timeout_s=10, security=kafka_security(settings_of(client))) as cluster:
        cluster.metadata()
        (first,) = cluster._connections.values()
        time.sleep(1.2 * SESSION_MS / 1000)  # the broker closes connections that did not reauthenticate in time
        cluster.metadata()
        (second,) = cluster._connections.values()
    assert first is not second
    assert first.is_closed


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_password_is_reported_by_producer_and_consumer(
    kafka: ApacheKafka, security: KafkaSecurity, registry_url: str, tmp_path: Path, mechanism: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not it")
    client = security.client("LOGIN", kafka.secured["LOGIN"], mechanism, password_file=str(wrong))
    settings = settings_of(client, registry_url, tmp_path / "data")
    with pytest.raises(ProducerError) as caught:
        Producer(settings, app="shop")
    assert "rejected the login of user loader" in str(caught.value)
    with pytest.raises(SourceUnavailable, match="rejected the login of user loader"):
        Consumer(settings, topics=["any"])


@pytest.mark.spark
@pytest.mark.parametrize("source", ["file", "environment", "settings"])
def test_load_command_shows_no_secret(
    kafka: ApacheKafka, security: KafkaSecurity, registry_url: str, tmp_path: Path, source: str
) -> None:
    topic = f"loaded-{source}"
    client = security.client("LOGIN", kafka.secured["LOGIN"], "SCRAM-SHA-512", password_file="", password="x")
    data_dir = tmp_path / "data"
    unsecured = settings_of(KafkaSettings(bootstrap_servers=kafka.address), registry_url, data_dir)
    with Producer(unsecured, app="shop") as producer:
        for number in range(100):
            producer.send(topic, {"id": number}, schema=SCHEMA)
    given = {"file": {"password_file": str(security.password_file)}, "settings": {"password": PASSWORD}}
    lines = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "user": USER, "ca": client.ca}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**lines, **given.get(source, {})}.items())
    text += f'[loader]\ntopics_include = ["{topic}"]\n'
    (tmp_path / "headrace.toml").write_text("[kafka]\n" + text, encoding="utf-8")
    command = [sys.executable, "-m", "headrace", "load", "--data-dir", str(data_dir), "--registry-url", registry_url]
    command += ["--bootstrap-servers", client.bootstrap_servers, "--master", "local[2]", "--format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("HEADRACE__KAFKA__PASSWORD", None)
    if source == "environment":
        environment["HEADRACE__KAFKA__PASSWORD"] = PASSWORD
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (loaded,) = json.loads(done.stdout)["loaded"]
    assert (loaded["topic"], loaded["rows"]) == (topic, 100)
    assert PASSWORD not in done.stdout + done.stderr
    held = [path for path in data_dir.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert held == []
