"""Unmodified clients with user names and passwords, and their permissions, against a running broker."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from headrace import (
    BrokerUnavailable,
    Consumer,
    KafkaSettings,
    Producer,
    RegistryClient,
    RegistrySettings,
    Settings,
    SourceUnavailable,
    TopicRefused,
)
from headrace.broker.access.login import MECHANISMS
from headrace.broker.access.scram import WRONG_CREDENTIALS
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.security import KafkaSecurity
from support.certificates import Authority

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
PASSWORD = "p4ss, =w$rd!"
GRANTS = """
grant ops    admin *
grant shop   write topic:shop.*
grant shop   read  topic:shop.*
grant shop   read  group:shop-*
grant shop   read  topic:readable
grant writer write topic:shop.*
"""


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker that requires SASL, over TLS."""

    address: str
    ca: str
    log: Path

    def python(self, user: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> dict[str, Any]:
        """Options of kafka-python's clients; the caller must escape the name as SCRAM requires."""
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": self.ca,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }

    def confluent(self, user: str, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }


def user_line(name: str) -> str:
    command = [sys.executable, "-m", "headrace", "broker", "user", name]
    return subprocess.run(command, input=PASSWORD + "\n", capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, start_module_service: Any) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "ca")
    certificate, key = authority.certificate("broker")
    users = directory / "users"
    users.write_text("".join(map(user_line, ("ops", "shop", "writer"))) + GRANTS, encoding="utf-8")
    settings = {"USERS": str(users), "TLS_CERTIFICATE": str(certificate), "TLS_KEY": str(key)}
    service = start_module_service(
        *("headrace", "broker", "serve", "--data-dir", str(directory / "data"), "--broker-listen", "127.0.0.1:0"),
        environment={f"HEADRACE__BROKER__{name}": value for name, value in settings.items()},
    )
    yield Secured(service.addresses["broker"], str(authority.ca_file), directory)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_writes_and_reads_in_a_group(secured: Secured, mechanism: str) -> None:
    topic = f"shop.python-{mechanism}"
    producer = KafkaProducer(**secured.python("shop", mechanism))
    for number in range(100):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=f"shop-{mechanism}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
        **secured.python("shop", mechanism),
    )
    assert [next(consumer).value for _ in range(100)] == [b"%d" % number for number in range(100)]
    consumer.commit()
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in_writes_and_reads_in_a_group(secured: Secured, mechanism: str) -> None:
    topic = f"shop.confluent-{mechanism}"
    producer = confluent_kafka.Producer({**secured.confluent("shop", mechanism), "enable.idempotence": True})
    for number in range(100):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer(
        {**secured.confluent("shop", mechanism), "group.id": f"shop-c-{mechanism}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen: list[bytes | None] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(seen) < 100:
        assert time.monotonic() < deadline
        seen += [message.value() for message in consumer.consume(100, 0.5) if not message.error()]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert seen == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_loaders_own_client_logs_in(secured: Secured, mechanism: str) -> None:
    producer = confluent_kafka.Producer(secured.confluent("ops"))
    producer.produce("shop.loaded", b"v")
    assert producer.flush(TIMEOUT_S) == 0
    security = KafkaSecurity("SASL_SSL", secured.ca, mechanism=mechanism, user="shop", password=PASSWORD)
    with KafkaCluster(secured.address, security=security) as cluster:
        assert "shop.loaded" in cluster.metadata().topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_fails_at_once(secured: Secured, mechanism: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient({**secured.confluent("shop", mechanism, "wrong"), "error_cb": errors.append})
    deadline = time.monotonic() + TIMEOUT_S
    while not errors:
        assert time.monotonic() < deadline
        client.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert WRONG_CREDENTIALS in errors[0].str()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_own_clients_log_in_write_and_read(
    secured: Secured, registry_url: str, tmp_path: Path, mechanism: str
) -> None:
    """Works without permissions on the audit topic, or on a group that the clients do not use."""
    kafka = KafkaSettings(
        bootstrap_servers=secured.address,
        security_protocol="SASL_SSL",
        ca=secured.ca,
        sasl_mechanism=mechanism,
        user="shop",
        password=PASSWORD,
    )
    settings = Settings(data_dir=tmp_path, registry=RegistrySettings(url=registry_url), kafka=kafka)
    topic = f"shop.ours-{mechanism}"
    with Producer(settings, app="shop") as producer:
        for number in range(20):
            producer.send(topic, number, schema='"int"')
    with Consumer(settings, topics=[topic], until_end=True, app="reader") as consumer:
        assert sorted(message.value for message in consumer) == list(range(20))
    with Consumer(settings, topics=[topic], group=f"shop-ours-{mechanism}", auto_commit=True) as consumer:
        assert sorted(next(consumer).value for _ in range(20)) == list(range(20))
    with (
        Consumer(settings, topics=[topic], group="other") as consumer,
        pytest.raises(SourceUnavailable, match="GROUP_AUTHORIZATION_FAILED"),
    ):
        next(consumer)
    creator = confluent_kafka.Producer(secured.confluent("ops"))
    creator.produce("readable", b"v")
    assert creator.flush(TIMEOUT_S) == 0
    with Producer(settings, app="shop") as producer:
        for refused, reason in (("elsewhere", "AUTHORIZATION"), ("readable", "no permission to write")):
            with pytest.raises(TopicRefused, match=rf"topic {refused}\b.*{reason}"):
                producer.send(refused, 1, schema='"int"')
    with RegistryClient(registry_url) as registry:
        assert not {"elsewhere-value", "readable-value"} & set(registry.subjects())
    wrong = dataclasses.replace(settings, kafka=dataclasses.replace(kafka, password="wrong"))
    with pytest.raises(BrokerUnavailable, match=WRONG_CREDENTIALS):
        Producer(wrong, app="shop")


def test_request_without_permission_is_refused(secured: Secured) -> None:
    ops = AdminClient(secured.confluent("ops"))
    ops.create_topics([NewTopic("shop.mine", 1), NewTopic("private", 1)])["private"].result(TIMEOUT_S)
    producer = KafkaProducer(**secured.python("writer"))
    producer.send("shop.mine", b"v").get(TIMEOUT_S)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("private", b"v").get(TIMEOUT_S)
    producer.close()
    reader = KafkaConsumer("shop.mine", group_id="other", **secured.python("shop"))
    with pytest.raises(GroupAuthorizationFailedError):
        reader.poll(TIMEOUT_S * 1000)
    reader.close()
    shop = KafkaAdminClient(**secured.python("shop"))
    assert "private" not in shop.list_topics() and "shop.mine" in shop.list_topics()
    shop.close()
    admin = AdminClient(secured.confluent("shop"))
    refused = admin.delete_topics(["shop.mine"])["shop.mine"]
    with pytest.raises(confluent_kafka.KafkaException) as error:
        refused.result(TIMEOUT_S)
    assert error.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_broker_off_loopback_without_users_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "broker", "serve", "--data-dir", str(tmp_path / "data")]
    ended = subprocess.run([*command, "--broker-listen", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("headrace: broker.listen is 0.0.0.0:0")
    assert not (tmp_path / "data").exists()
