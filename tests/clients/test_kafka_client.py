"""Connecting, options and errors of the clients of librdkafka."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace import Consumer, Producer
from headrace.clients import kafka_client
from headrace.clients.audit_publisher import spool_directories
from headrace.clients.kafka_client import (
    KAFKA_LOGGER,
    BrokersUnreachable,
    create_client,
    error_text,
    merge_options,
    reach_brokers,
)
from headrace.kafka_wire.from_settings import kafka_security
from headrace.kafka_wire.security import SecurityConfigError
from headrace.settings import KafkaSettings, Settings, loading
from support.certificates import Authority
from support.golden import case_lines, golden


def options(**kafka: str) -> dict[str, object]:
    return kafka_security(Settings(kafka=KafkaSettings(**kafka))).librdkafka_options()


def test_settings_become_librdkafka_options(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ca = str(authority.ca_file)
    certificate, key = map(str, authority.certificate("client"))
    sealed, sealed_key = map(str, authority.certificate("sealed", key_password="k3y"))
    assert options() == {"security.protocol": "PLAINTEXT"}
    tls = {"security.protocol": "SSL", "ssl.ca.location": ca}
    assert options(security_protocol="SSL", ca=ca) == tls
    assert options(security_protocol="SSL", ca=ca, certificate=certificate, key=key) == {
        **tls,
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
    }
    found = options(security_protocol="SSL", ca=ca, certificate=sealed, key=sealed_key, key_password="k3y")
    assert found["ssl.key.password"] == "k3y"
    with pytest.raises(SecurityConfigError, match=r"kafka\.certificate"):
        options(security_protocol="SSL", ca=ca, certificate=sealed, key=sealed_key, key_password="wrong")
    assert options(security_protocol="SSL")["ssl.ca.location"]  # the system's authorities
    login = {"security_protocol": "SASL_PLAINTEXT", "user": "a=b,c", "password": "p"}
    assert options(**login, sasl_mechanism="SCRAM-SHA-512") == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "a=b,c",
        "sasl.password": "p",
    }
    assert options(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI", kerberos_service="k") == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "k",
    }


def test_token_file_is_read_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    monkeypatch.setattr("headrace.kafka_wire.security.time.time", lambda: 1000.0)
    found = options(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", token_file=str(file))
    read_token = found["oauth_cb"]
    assert callable(read_token)
    for token in ("first", "second"):
        file.write_text(token)
        assert read_token("") == (token, 1060.0)


def test_unreachable_brokers_are_an_error_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(BrokersUnreachable, match=r"127\.0\.0\.1:1 .*\bkafka\.bootstrap_servers\b"):
        reach_brokers(settings, 0.2)


def test_merge_options_rejects_refused_options() -> None:
    assert merge_options({"a": 1, "b": 2}, {"b": 3, "topic.c": 4}, {"a": "no"}) == {"a": 1, "b": 3, "topic.c": 4}
    assert merge_options({"a": 1}, None, {"a": "no"}) == {"a": 1}
    for name in ("a", "topic.a"):
        with pytest.raises(ValueError, match=rf"^options\['{name}'\] .*for a reason$"):
            merge_options({"a": 1}, {name: 1}, {"a": "for a reason"})


REJECTED_BY_BOTH = [
    "bootstrap.servers",
    "metadata.broker.list",
    "test.mock.num.brokers",
    "default.topic.config",
]
"""Options that both clients reject."""


REJECTED_BY_PRODUCERS = [
    "acks",
    "topic.acks",
    "request.required.acks",
    "enable.idempotence",
    "delivery.timeout.ms",
    "topic.message.timeout.ms",
    "message.timeout.ms",
    "delivery.report.only.error",
    "transactional.id",
    "on_delivery",
    "dr_cb",
    "dr_msg_cb",
]
"""Options that producers reject, too."""


REJECTED_BY_CONSUMERS = [
    "group.id",
    "enable.auto.commit",
    "auto.commit.enable",
    "topic.auto.commit.enable",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "isolation.level",
    "allow.auto.create.topics",
]
"""Options that consumers reject, too."""


def test_options_that_would_break_a_guarantee_are_rejected() -> None:
    clients: tuple[tuple[list[str], Callable[[dict[str, object]], object]], ...] = (
        (REJECTED_BY_BOTH, lambda options: merge_options({}, options, {})),
        (REJECTED_BY_PRODUCERS, lambda options: Producer(Settings(), app="shop", options=options)),
        (REJECTED_BY_CONSUMERS, lambda options: Consumer(Settings(), topics=["t"], options=options)),
    )
    errors = []
    for names, make in clients:
        for name in names:
            with pytest.raises(ValueError, match=rf"^options\['{name}'\] ") as refused:
                make({name: "all"})
            errors.append((name, refused.value))
    lines = case_lines(errors)
    assert lines == golden("clients/refused_options.txt", lines)


def test_error_text_is_one_line() -> None:
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    assert error_text(error) == error_text(KafkaException(error)) == "_MSG_TIMED_OUT: Local: Message timed out"
    assert error_text(RuntimeError("two\nlines")) == "RuntimeError: two lines"


def test_repeated_log_lines_of_librdkafka_are_suppressed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(kafka_client.time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, KAFKA_LOGGER.name):
        for n in range(100):
            KAFKA_LOGGER.error("FAIL broker refused (after %dms in state CONNECT)", n)
        now += kafka_client.REPEAT_AFTER_S
        KAFKA_LOGGER.error("FAIL broker refused (after 3ms in state CONNECT)")
        KAFKA_LOGGER.error("FAIL another")
    assert len(caplog.records) == 3


def test_spool_is_in_the_data_directory_or_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    default = Settings()
    at_home = tmp_path / "home" / ".local" / "state" / "headrace" / "audit-spool"
    in_data = Path("headrace-data") / "audit-spool"
    assert spool_directories(default) == (at_home, in_data)
    named = dataclasses.replace(default, data_dir=tmp_path / "data")
    assert spool_directories(named) == (tmp_path / "data" / "audit-spool", at_home)
    (tmp_path / "headrace-data").mkdir()
    assert spool_directories(default) == (in_data, at_home)
    monkeypatch.setattr(loading, "home_directory", lambda: None)
    assert spool_directories(default) == (in_data,)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert spool_directories(default) == (in_data, tmp_path / "state" / "headrace" / "audit-spool")


def test_error_explains_how_to_install_kerberos() -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(ValueError, match=r"GSSAPI.*--no-binary"):
        create_client(confluent_kafka.Producer, config)
