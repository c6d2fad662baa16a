"""Clients of a registry with authentication and with TLS by a private authority."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import Consumer, Producer
from headrace.registry import errors
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings, load_settings
from support.certificates import Authority
from support.registry.registry_calls import STRING, USER_1
from support.registry.secured_registry import PASSWORD, secured_registry

confluent = pytest.importorskip("confluent_kafka.schema_registry")
schema_registry = pytest.importorskip("schema_registry.client")
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402
from schema_registry.client.errors import ClientError  # noqa: E402


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def url(authority: Authority, start_module_service: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return secured_registry(start_module_service, tmp_path_factory.mktemp("registry"), authority)


@pytest.fixture(scope="module")
def dead_url() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def settings(url: str, authority: Authority, tmp_path: Path) -> Settings:
    return settings_of(url, authority, tmp_path)


def settings_of(url: str, authority: Authority, data_dir: Path, **more: str) -> Settings:
    flags = {
        "data_dir": str(data_dir),
        "registry.url": url,
        "registry.client_user": "shop",
        "registry.client_password": PASSWORD,
        "registry.client_ca": str(authority.ca_file),
    }
    return load_settings(flags={**flags, **more})


def test_registry_client_authenticates_over_tls(
    settings: Settings, authority: Authority, dead_url: str, tmp_path: Path
) -> None:
    both = settings_of(f"{dead_url},{settings.registry.url}", authority, tmp_path)
    with registry_client(both) as client:
        registered = client.register("shop-orders", USER_1)
        assert client.schema_by_id(registered.schema_id).text == USER_1
        with pytest.raises(errors.AccessDenied):
            client.register("other-orders", USER_1)
        with pytest.raises(errors.AccessDenied):
            client.set_compatibility("NONE")
    wrong = settings_of(settings.registry.url, authority, tmp_path, **{"registry.client_password": "guess"})
    with registry_client(wrong) as client, pytest.raises(errors.CredentialsRefused) as refused:
        client.subjects()
    assert PASSWORD not in str(refused.value)
    assert "guess" not in str(refused.value)
    anonymous = load_settings(
        flags={"registry.url": settings.registry.url, "registry.client_ca": str(authority.ca_file)}
    )
    with registry_client(anonymous) as client, pytest.raises(errors.CredentialsRefused):
        client.subjects()


def test_producer_and_consumer_authenticate_over_tls(
    settings: Settings, authority: Authority, broker_address: str, tmp_path: Path
) -> None:
    with_broker = settings_of(settings.registry.url, authority, tmp_path, **{"kafka.bootstrap_servers": broker_address})
    with Producer(with_broker, app="shop") as producer:
        producer.send("shop-users", {"id": 7}, schema=USER_1)
    with Consumer(with_broker, topics=["shop-users"], until_end=True) as consumer:
        assert [message.value for message in consumer] == [{"id": 7}]


def test_confluent_client_authenticates_over_tls(url: str, authority: Authority, dead_url: str) -> None:
    conf = {"url": f"{dead_url},{url}", "ssl.ca.location": str(authority.ca_file), "max.retries": 0}
    client: Any = confluent.SchemaRegistryClient({**conf, "basic.auth.user.info": f"shop:{PASSWORD}"})
    context = SerializationContext("shop-confluent", MessageField.VALUE)
    message = AvroSerializer(client, USER_1)({"id": 1}, context)
    assert AvroDeserializer(client)(message, context) == {"id": 1}
    for user, call, expected in (
        (
            f"shop:{PASSWORD}",
            lambda client: client.register_schema("other", confluent.Schema(STRING, "AVRO")),
            (403, 40301),
        ),
        ("shop:guess", lambda client: client.get_subjects(), (401, 40101)),
    ):
        with pytest.raises(SchemaRegistryError) as refused:
            call(confluent.SchemaRegistryClient({**conf, "url": url, "basic.auth.user.info": user}))
        assert (refused.value.http_status_code, refused.value.error_code) == expected


def test_python_schema_registry_client_authenticates_over_tls(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client uses its own CA setting only together with a client certificate; this variable takes precedence.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))

    def open_as(password: str) -> Any:
        return schema_registry.SchemaRegistryClient(url, auth=httpx.BasicAuth("shop", password))

    assert open_as(PASSWORD).register("shop-python", USER_1)
    assert "shop-python" in open_as(PASSWORD).get_subjects()
    for password, call, expected in (
        (PASSWORD, lambda client: client.register("other", USER_1), 403),
        ("guess", lambda client: client.get_subjects(), 401),
    ):
        with pytest.raises(ClientError) as refused:
            call(open_as(password))
        assert refused.value.http_code == expected
