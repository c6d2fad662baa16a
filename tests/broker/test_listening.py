"""Listening: advertised address and TLS."""

from __future__ import annotations

import asyncio
import re
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.group import SESSION_TIMEOUT_MS_MAX
from headrace.broker.errors import TlsUnusable
from headrace.broker.server import BrokerServer, load_tls_context
from headrace.broker.topic_config import MESSAGE_BYTES_LIMIT
from headrace.broker.topics import PARTITIONS_MAX
from headrace.cli import main
from headrace.settings.sections import AT_MOST
from headrace.settings.values import Duration
from support.certificates import Authority


def with_server(directory: Path, work: Callable[[BrokerServer, str, int], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        server = BrokerServer(BrokerConfig(directory, port=0, **config))
        host, port = await server.start()
        serving = asyncio.create_task(server.wait())
        try:
            await asyncio.wait_for(work(server, host, port), 30)
        finally:
            server.stop()
            await serving

    asyncio.run(main())


async def advertised_address(host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
    """Returns the address in the broker's metadata."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        body = MetadataRequest(version=1, topics=[]).encode(version=1)
        writer.write(struct.pack(">ihhih", 10 + len(body), 3, 1, 7, -1) + body)
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        response = MetadataResponse.decode((await reader.readexactly(size))[4:], version=1)
        return response.brokers[0].host, response.brokers[0].port
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("advertised", "expected"),
    [
        ({}, ("127.0.0.1", 0)),
        ({"advertised_host": "broker.example"}, ("broker.example", 0)),
        ({"advertised_host": "broker.example", "advertised_port": 19092}, ("broker.example", 19092)),
        ({"advertised_port": 19092}, ("127.0.0.1", 19092)),
    ],
)
def test_metadata_contains_advertised_address(
    tmp_path: Path, advertised: dict[str, Any], expected: tuple[str, int]
) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        assert host == "127.0.0.1" and port > 0
        assert await advertised_address(host, port) == (expected[0], expected[1] or port)

    with_server(tmp_path, work, **advertised)


def test_wildcard_listen_address_logs_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: BrokerServer, host: str, port: int) -> None:
        assert (await advertised_address("127.0.0.1", port))[0] == "0.0.0.0"

    with_server(tmp_path, work, host="0.0.0.0")
    assert "broker.advertised_host" in caplog.text
    caplog.clear()

    async def named(server: BrokerServer, host: str, port: int) -> None:
        assert await advertised_address("127.0.0.1", port) == ("broker.example", port)

    with_server(tmp_path, named, host="0.0.0.0", advertised_host="broker.example")
    assert "advertised_host" not in caplog.text


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca_file))


def test_with_certificate_only_tls_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.certificate("broker")

    async def work(server: BrokerServer, host: str, port: int) -> None:
        assert await advertised_address(host, port, client_context(authority)) == ("127.0.0.1", port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await advertised_address(host, port)
        with pytest.raises(ssl.SSLError):
            await advertised_address(host, port, client_context(Authority(tmp_path / "other")))

    with_server(tmp_path / "data", work, tls_certificate=str(certificate), tls_key=str(key))


def test_client_certificate_is_required_with_client_ca(tmp_path: Path) -> None:
    authority, strangers = Authority(tmp_path / "ca"), Authority(tmp_path / "strangers")
    certificate, key = authority.certificate("broker")

    async def work(server: BrokerServer, host: str, port: int) -> None:
        tls = client_context(authority)
        tls.load_cert_chain(*authority.certificate("client"))
        assert await advertised_address(host, port, tls) == ("127.0.0.1", port)
        for shown in ((), strangers.certificate("client")):
            tls = client_context(authority)
            if shown:
                tls.load_cert_chain(*shown)
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await advertised_address(host, port, tls)

    files = {"tls_certificate": str(certificate), "tls_key": str(key), "tls_client_ca": str(authority.ca_file)}
    with_server(tmp_path / "data", work, **files)


def test_unusable_tls_files_are_named_before_data_is_touched(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.certificate("broker")
    _, locked = authority.certificate("locked", key_password="secret")
    config = {"tls_certificate": str(certificate), "tls_key": str(key)}
    none, another, ca_file = tmp_path / "none", authority.certificate("another")[1], authority.ca_file
    for changed, setting, path, reason in (
        ({"tls_certificate": str(none)}, "tls_certificate", none, "No such file"),
        ({"tls_key": str(locked)}, "tls_key", locked, ""),
        ({"tls_key": str(another)}, "tls_key", another, "mismatch"),
        ({"tls_client_ca": str(key)}, "tls_client_ca", key, ""),
        # A broker without a certificate would serve every client in plaintext.
        ({"tls_certificate": ""}, "tls_key", key, "broker.tls_certificate"),
        (
            {"tls_certificate": "", "tls_key": "", "tls_client_ca": str(ca_file)},
            "tls_client_ca",
            ca_file,
            "broker.tls_certificate",
        ),
    ):
        with pytest.raises(TlsUnusable) as error:
            load_tls_context(BrokerConfig(tmp_path / "data", **{**config, **changed}))
        message = str(error.value)
        assert f"broker.{setting} {path}" in message and reason in message and "\n" not in message
    assert not (tmp_path / "data").exists()


def test_heartbeat_interval_above_session_timeout_refuses_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE__BROKER__CONSUMER_SESSION_TIMEOUT", "5s")
    assert main(["broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"broker\.consumer_heartbeat_interval.*5s", error) and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_settings_allow_maxima_of_client_requests() -> None:
    assert AT_MOST["broker.partitions"] == PARTITIONS_MAX
    assert AT_MOST["broker.message_bytes_max"] == MESSAGE_BYTES_LIMIT
    assert AT_MOST["broker.session_timeout_min"] == Duration(SESSION_TIMEOUT_MS_MAX)
