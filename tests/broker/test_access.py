"""Authentication and authorization: users file, PLAIN and SCRAM logins, permissions, rate and connection limits."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import inspect
import logging
import struct
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import ScramClient
from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from headrace.broker import connection as connection_module
from headrace.broker.access import login as login_module
from headrace.broker.access.login import MECHANISMS, Login, Users
from headrace.broker.access.permissions import ALL_PERMISSIONS, BrokerPermission, BrokerPermissions, Grant, ResourceType
from headrace.broker.access.scram import (
    HASHES,
    ITERATIONS_MIN,
    WRONG_CREDENTIALS,
    ClientFirstMessage,
    LoginRefused,
    ScramExchange,
    Verifier,
)
from headrace.broker.access.users import BrokerUsersFile, parse_users, user_line
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.errors import RequestRefused, UsersUnusable
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.dispatch import HANDLERS
from headrace.broker.node import BrokerNode
from headrace.broker.protocol import api_versions as api
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.broker.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from headrace.broker.rate_limiter import BURST_S, CLIENTS_MAX, ByteRateLimiter
from headrace.broker.server import BrokerServer
from headrace.kafka_wire import messages
from headrace.kafka_wire.record_batch import read_batch_header
from support.broker.broker_samples import NOW_MS, batch
from support.golden import case_lines, golden
from support.logs import logged

PASSWORD = "p4ss, =w$rd!"
OTHER_PASSWORD = "gu3ss-of-s0mebody"


def verifiers(password: str = PASSWORD) -> dict[str, Verifier]:
    return {name: Verifier.derive(name, password, b"s" * 16, ITERATIONS_MIN) for name in HASHES}


def users_text(*names: str, grants: str = "") -> str:
    return "\n".join([*(user_line(name, verifiers()) for name in names), grants, ""])


# Users file


def test_users_file_defines_users_and_their_permissions() -> None:
    policy = parse_users(
        "# who\n\n"
        + users_text("shop", "ops")
        + "grant shop read topic:shop.*  # all of it\ngrant shop write topic:shop.orders\n"
        + "grant shop read group:shop-*\ngrant ops admin *\ngrant * read topic:public"
    )
    assert set(policy.users) == {"shop", "ops"}
    shop, ops = policy.permissions["shop"], policy.permissions["ops"]
    assert shop.granted_on(ResourceType.TOPIC, "shop.orders") == {BrokerPermission.READ, BrokerPermission.WRITE}
    assert (
        shop.granted_on(ResourceType.TOPIC, "shop.")
        == {BrokerPermission.READ}
        == shop.granted_on(ResourceType.TOPIC, "public")
    )
    assert (
        shop.granted_on(ResourceType.TOPIC, "shopxorders")
        == shop.granted_on(ResourceType.GROUP, "shop.x")
        == frozenset()
    )
    assert shop.granted_on(ResourceType.GROUP, "shop-x") == {BrokerPermission.READ}
    assert (
        ops.granted_on(ResourceType.TOPIC, "any")
        == ops.granted_on(ResourceType.GROUP, "any")
        == frozenset(BrokerPermission)
    )
    assert (ops.is_admin, shop.is_admin, shop.can_write_any_topic) == (True, False, True)


def test_users_file_errors_name_line_without_hash(tmp_path: Path) -> None:
    shop = users_text("shop")
    texts = {
        "no verifiers": "user shop",
        "unknown keyword": "allow shop",
        "hash of the registry": "user shop $scrypt$ln=14,r=8,p=5$c2FsdA$aGFzaA",
        "one verifier": shop.split(",")[0],
        "malformed verifier": shop.replace(":", ":=", 1),
        "few iterations": shop.replace("$4096:", "$4095:"),
        "user twice": shop * 2,
        "grant to no user": "\ngrant shop read *",
        "unknown right": shop + "grant shop own *",
        "resource without kind": shop + "grant shop read shop",
        "empty pattern": shop + "grant shop read topic:",
        "write to a group": shop + "grant shop write group:g",
        "read of a transactional id": shop + "grant shop read transaction:x",
        "empty file": "",
        "long line": "user " + "x" * 5000,
        "not UTF-8": b"\xff\xfe",
        "missing file": None,
    }
    messages = {}
    for case, text in texts.items():
        path = tmp_path / case
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UsersUnusable) as error:
            BrokerUsersFile(path)
        text = str(error.value)
        assert error.value.path == str(path) and str(path) in text and "\n" not in text
        assert not any(str(verifier).split("$")[2] in text for verifier in verifiers().values())
        messages[case] = error.value.reason
    found = case_lines(messages.items())
    assert found == golden("messages/broker_users_file.txt", found)


def test_changed_users_file_is_reloaded_unless_it_has_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "users"
    path.write_text(users_text("kept", "gone", "renewed"), encoding="utf-8")
    file = BrokerUsersFile(path)
    assert file.reload_if_changed() == frozenset()
    changed = {name: Verifier.derive(name, "new", b"t" * 16, ITERATIONS_MIN) for name in HASHES}
    path.write_text(users_text("kept") + user_line("renewed", changed), encoding="utf-8")
    assert file.reload_if_changed() == {"gone", "renewed"}
    assert set(file.policy.users) == {"kept", "renewed"}
    path.write_text("", encoding="utf-8")
    assert file.reload_if_changed() == file.reload_if_changed() == frozenset()
    assert set(file.policy.users) == {"kept", "renewed"}
    path.unlink()
    assert file.reload_if_changed() == file.reload_if_changed() == frozenset()
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 2
    path.write_text(users_text("kept"), encoding="utf-8")
    assert file.reload_if_changed() == {"renewed"}


# SCRAM


def test_scram_exchange_matches_rfc_7677_example() -> None:
    salt = "W22ZaJ0SNY7soEsUEjb6gQ=="
    server_nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    verifier = Verifier.derive("SCRAM-SHA-256", "pencil", base64.b64decode(salt), 4096)
    exchange = ScramExchange(ClientFirstMessage.parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"), verifier, server_nonce)
    assert exchange.challenge == f"r=rOprNGfwEbeRWgbNEkqO{server_nonce},s={salt},i=4096"
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    response = exchange.finish(f"c=biws,r=rOprNGfwEbeRWgbNEkqO{server_nonce},p={proof}".encode())
    assert response == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(mechanism: str, text: str, known: Verifier, user: str = "shop") -> bytes:
    """Runs a complete login of kafka-python's client and returns what the client verified of the last response."""
    client = ScramClient(user, text, mechanism)
    exchange = ScramExchange(ClientFirstMessage.parse(client.first_message()), known, "nonce-of-ours")
    client.process_server_first_message(exchange.challenge.encode())
    response = exchange.finish(client.final_message())
    client.process_server_final_message(response)
    return response


@pytest.mark.parametrize("mechanism", list(HASHES))
def test_kafka_python_scram_client_authenticates_and_verifies_broker(mechanism: str) -> None:
    assert scram(mechanism, PASSWORD, Verifier.parse(str(verifiers()[mechanism])))
    with pytest.raises(LoginRefused, match=WRONG_CREDENTIALS):
        scram(mechanism, OTHER_PASSWORD, verifiers()[mechanism])


def test_scram_user_name_is_unescaped() -> None:
    assert ClientFirstMessage.parse(b"n,a=a=2Cb=3D,n=a=2Cb=3D,r=x").user == "a,b="


def test_unsupported_scram_first_messages_are_refused_with_reason() -> None:
    raws = {
        "unescaped equals sign": b"n,,n=a=2cb,r=x",
        "other authorization id": b"n,a=other,n=user,r=x",
        "delegation token": b"n,,n=user,r=x,tokenauth=true",
        "channel binding": b"p=tls-unique,,n=user,r=x",
        "long nonce": b"n,,n=user,r=" + b"x" * 513,
        "not UTF-8": b"\xff",
        "long message": b"n,,n=user,r=" + b"x" * 5000,
    }
    messages = {}
    for case, raw in raws.items():
        with pytest.raises(LoginRefused) as refused:
            ClientFirstMessage.parse(raw)
        messages[case] = str(refused.value)
    found = case_lines(messages.items())
    assert found == golden("messages/broker_scram.txt", found)


@given(st.binary(max_size=200) | st.from_regex(r"[cn]=.{0,20},[rn]=.{0,20}(,p=.{0,30})?").map(str.encode))
@example(b"c=biws,r=abnonce,p=====")
@example(b"c=biws,r=abnonce,p=")
def test_arbitrary_scram_messages_are_refused_with_reason(raw: bytes) -> None:
    known = Verifier("SCRAM-SHA-256", ITERATIONS_MIN, b"s", b"k" * 32, b"v" * 32)
    exchange = ScramExchange(ClientFirstMessage.parse(b"n,,n=user,r=ab"), known, "nonce")
    with pytest.raises(LoginRefused):
        exchange.finish(raw)
    try:
        ClientFirstMessage.parse(raw)
    except LoginRefused as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize("corrupted", ["nonce", "header", "proof"])
def test_every_part_of_scram_final_message_is_checked(corrupted: str) -> None:
    """With a different nonce or header the proof itself is valid, because the client signs what it sends."""
    client = ScramClient("shop", PASSWORD, "SCRAM-SHA-256")
    first = client.first_message()
    known = verifiers()["SCRAM-SHA-256"]
    exchange = ScramExchange(ClientFirstMessage.parse(first), known, "nonce-of-ours")
    challenge = exchange.challenge.encode()
    if corrupted == "nonce":
        challenge = challenge.replace(b"nonce-of-ours", b"nonce-of-0urs")
        exchange.challenge = challenge.decode()
    client.process_server_first_message(challenge)
    final = client.final_message()
    if corrupted == "header":
        exchange = ScramExchange(ClientFirstMessage.parse(b"n,a=shop," + first[3:]), known, "nonce-of-ours")
    if corrupted == "proof":
        final = final[:-9] + b"AAAAAAAA="
    with pytest.raises(LoginRefused, match=WRONG_CREDENTIALS):
        exchange.finish(final)


# Logins over a connection


class Client:
    """A client that sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, host: str, port: int) -> Client:
        return cls(*await asyncio.open_connection(host, port))

    async def request(self, key: int, version: int, body: bytes) -> bytes:
        """Returns the response body; b"" if the connection was closed."""
        self.writer.write(struct.pack(">ihhih", 10 + len(body), key, version, 7, -1) + body)
        try:
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return (await self.reader.readexactly(size))[4:]
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def handshake(self, mechanism: str) -> Any:
        body = SaslHandshakeRequest(version=1, mechanism=mechanism).encode(version=1)
        return SaslHandshakeResponse.decode(await self.request(api.SASL_HANDSHAKE, 1, body), version=1)

    async def send_sasl(self, message: bytes) -> Any:
        body = SaslAuthenticateRequest(version=1, auth_bytes=message).encode(version=1)
        raw = await self.request(api.SASL_AUTHENTICATE, 1, body)
        return SaslAuthenticateResponse.decode(raw, version=1) if raw else None

    async def log_in(self, mechanism: str, user: str, password: str) -> Any:
        """Returns the last SASL response."""
        assert (await self.handshake(mechanism)).error_code == 0
        if mechanism == "PLAIN":
            return await self.send_sasl(
                SaslMechanismPlain(sasl_plain_username=user, sasl_plain_password=password).auth_bytes()
            )
        scram = ScramClient(user, password, mechanism)
        response = await self.send_sasl(scram.first_message())
        scram.process_server_first_message(response.auth_bytes)
        response = await self.send_sasl(scram.final_message())
        if not response.error_code:
            scram.process_server_final_message(response.auth_bytes)
        return response

    async def topics(self) -> bytes:
        return await self.request(api.METADATA, 1, metadata.MetadataRequest(version=1, topics=None).encode(version=1))


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "FAILED_LOGIN_DELAY_S", 0.0)


def with_server(directory: Path, work: Callable[[BrokerServer, Client], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        server = BrokerServer(BrokerConfig(directory / "data", port=0, **config))
        address = await server.start()
        serving = asyncio.create_task(server.wait())
        client = await Client.to(*address)
        try:
            await asyncio.wait_for(work(server, client), 30)
        finally:
            client.writer.close()
            server.stop()
            await serving

    asyncio.run(main())


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "users"
    path.write_text(users_text("shop", "spy", grants="grant shop admin *"), encoding="utf-8")
    return str(path)


async def connect(server: BrokerServer) -> Client:
    assert server._server is not None
    return await Client.to(*server._server.sockets[0].getsockname()[:2])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_requests_after_login_are_served(tmp_path: Path, users: str, mechanism: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        assert (await client.log_in(mechanism, "shop", PASSWORD)).error_code == 0
        assert await client.topics()
        # A second login is refused; the connection keeps its user.
        assert (await client.handshake(mechanism)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    with_server(tmp_path, work, users=users)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("shop", OTHER_PASSWORD), (OTHER_PASSWORD, PASSWORD), ("spy2", "")])
def test_wrong_password_and_unknown_user_get_same_error_and_are_closed(
    tmp_path: Path, users: str, caplog: pytest.LogCaptureFixture, mechanism: str, user: str, password: str
) -> None:
    caplog.set_level(logging.DEBUG)

    async def work(server: BrokerServer, client: Client) -> None:
        response = await client.log_in(mechanism, user, password)
        assert (response.error_code, response.error_message) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            WRONG_CREDENTIALS,
        )
        assert await client.reader.read() == b""

    with_server(tmp_path, work, users=users)
    assert logged(caplog, "broker.handlers.sasl", "127.0.0.1", mechanism, WRONG_CREDENTIALS)
    for secret in (PASSWORD, OTHER_PASSWORD, str(verifiers()["SCRAM-SHA-256"])):
        assert secret not in caplog.text


def test_unknown_user_gets_same_kind_of_challenge_as_known_user(tmp_path: Path, users: str) -> None:
    """Like a known user it gets the same salt each time, and the parameters of a known user."""
    known = Users(BrokerUsersFile(Path(users)))
    unknown = known.verifiers("nobody")
    assert unknown == known.verifiers("nobody") != known.verifiers("somebody")
    shapes = {shape_of(each) for each in known.file.policy.users.values()}
    assert {shape_of(known.verifiers(f"nobody {number}")) for number in range(50)} == shapes
    for mechanism, verifier in unknown.items():
        assert Verifier.parse(str(verifier)) == verifier and verifier.mechanism == mechanism
    known.key = bytes(32)
    assert known.verifiers("nobody") != unknown


def shape_of(known: Mapping[str, Verifier]) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted((mechanism, each.iterations, len(each.salt)) for mechanism, each in known.items()))


def test_unknown_users_share_the_parameters_of_known_users(tmp_path: Path) -> None:
    """This includes passwords that another program has stored, and a change of the file."""
    path = tmp_path / "users"
    foreign = {
        name: Verifier.derive(name, PASSWORD, bytes(salt_bytes), 4096 + salt_bytes)
        for name, salt_bytes in (("SCRAM-SHA-256", 20), ("SCRAM-SHA-512", 40))
    }
    path.write_text(user_line("foreign", foreign) + "\n")
    found = Users(BrokerUsersFile(path))
    assert shape_of(found.verifiers("nobody")) == shape_of(foreign)
    path.write_text(user_line("foreign", foreign) + "\n" + user_line("own", verifiers()) + "\n")
    found.file.reload_if_changed()
    shapes = {shape_of(found.verifiers(f"nobody {number}")) for number in range(50)}
    assert shapes == {shape_of(foreign), shape_of(verifiers())}


def test_challenge_of_unknown_user_is_the_same_after_a_restart(tmp_path: Path, users: str) -> None:
    found: list[Mapping[str, Verifier]] = []

    async def work(server: BrokerServer, client: Client) -> None:
        assert server.connections.users is not None
        found.append(server.connections.users.verifiers("nobody"))

    for _ in range(2):
        with_server(tmp_path, work, users=users)
    assert found[0] == found[1]
    (path,) = tmp_path.rglob("login-key")
    assert path.stat().st_mode & 0o777 == 0o600


def test_requests_before_login_close_connection(tmp_path: Path, users: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        refused = {row.key: row.highest for row in api.ROWS if row.key not in connection_module.APIS_BEFORE_LOGIN}
        responses = {
            key: await (await connect(server)).request(key, version, b"\0" * 40) for key, version in refused.items()
        }
        assert responses == dict.fromkeys(refused, b"")
        # Produce before version 3 is not served and would otherwise get a response with the request's topic names.
        for key, version in ((api.PRODUCE, 2), (999, 0)):
            assert await (await connect(server)).request(key, version, struct.pack(">hii", 1, 1000, 0)) == b""

    with_server(tmp_path, work, users=users)


def test_api_versions_and_handshake_are_served_before_login(tmp_path: Path, users: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        response = metadata.ApiVersionsResponse.decode(await client.request(api.API_VERSIONS, 0, b""), version=0)
        assert {row.api_key for row in response.api_keys} >= {api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE}
        refused = await client.handshake("GSSAPI")
        assert (refused.error_code, list(refused.mechanisms)) == (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            list(MECHANISMS),
        )
        assert (await client.log_in("PLAIN", "shop", PASSWORD)).error_code == 0

    with_server(tmp_path, work, users=users)


def test_malformed_or_unexpected_sasl_message_is_refused(tmp_path: Path, users: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        responses = {"no handshake": await client.send_sasl(b"\0shop\0" + PASSWORD.encode())}
        for case, message in {
            "empty": b"",
            "one zero byte": b"shop\0" + PASSWORD.encode(),
            "long password": b"\0shop\0" + b"x" * 1025,
            "other authorization id": b"spy\0shop\0" + PASSWORD.encode(),
            "not UTF-8": b"\0\xff\0x",
        }.items():
            client = await connect(server)
            await client.handshake("PLAIN")
            responses[case] = await client.send_sasl(message)
            assert await client.reader.read() == b""
        assert {response.error_code for response in responses.values()} == {ErrorCode.SASL_AUTHENTICATION_FAILED}
        found = case_lines((case, response.error_message) for case, response in responses.items())
        assert found == golden("messages/broker_plain.txt", found)

    with_server(tmp_path, work, users=users)


def test_large_frame_before_login_is_refused_by_its_length(tmp_path: Path, users: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        client.writer.write(struct.pack(">ihh", 64 * 1024 + 1, api.PRODUCE, 9))
        assert await client.reader.read() == b""

    with_server(tmp_path, work, users=users)


def test_connection_without_login_is_closed_after_timeout(
    tmp_path: Path, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOGIN_TIMEOUT_S", 0.3)

    async def work(server: BrokerServer, client: Client) -> None:
        known = await connect(server)
        assert (await known.log_in("PLAIN", "shop", PASSWORD)).error_code == 0
        assert await client.reader.read() == b""
        assert await known.topics()

    with_server(tmp_path, work, users=users)


def test_sasl_handshake_without_users_is_illegal_state(tmp_path: Path) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        assert (await client.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.topics()

    with_server(tmp_path, work)


def test_deleted_user_is_disconnected_and_permission_changes_apply_at_once(tmp_path: Path, users: str) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        other = await connect(server)
        await client.log_in("PLAIN", "shop", PASSWORD)
        await other.log_in("SCRAM-SHA-512", "spy", PASSWORD)
        server.node.changes.create_topic("seen", 1, {})
        assert b"seen" in await client.topics() and b"seen" not in await other.topics()
        Path(users).write_text(users_text("spy", grants="grant spy read topic:seen"), encoding="utf-8")
        server._reload_users()
        assert await client.topics() == b""
        assert b"seen" in await other.topics()
        # A password that was verified before is refused after the user's deletion.
        assert (await (await connect(server)).log_in("PLAIN", "shop", PASSWORD)).error_code

    with_server(tmp_path, work, users=users)


def test_plain_password_is_hashed_once_for_many_connections(
    tmp_path: Path, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    matches = Verifier.matches
    monkeypatch.setattr(Verifier, "matches", lambda self, text: bool(hashed.append(text)) or matches(self, text))

    async def work(server: BrokerServer, client: Client) -> None:
        for password in (PASSWORD, PASSWORD, OTHER_PASSWORD, PASSWORD, OTHER_PASSWORD):
            client = await connect(server)
            response = await client.log_in("PLAIN", "shop", password)
            assert bool(response.error_code) == (password != PASSWORD)

    with_server(tmp_path, work, users=users)
    assert hashed == [PASSWORD, OTHER_PASSWORD, OTHER_PASSWORD]


# Permissions


def login_with(*grants: str) -> Login:
    """Returns a login with these grants, each `PERMISSION RESOURCE`."""
    permissions = BrokerPermissions(Grant.parse(*grant.split()) for grant in grants)
    return type("Known", (Login,), {"__slots__": (), "permissions": permissions})(None)  # type: ignore[no-any-return]


PermissionCase = tuple[Any, str]


def permission_cases() -> dict[int, list[PermissionCase]]:
    """Returns, by API key, requests about topic `t`, group `g` or the broker, each with its required permissions; ""
    for none."""
    topics = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    offsets = consumer.ListOffsetsRequest.ListOffsetsTopic
    epochs = consumer.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    records = admin.DeleteRecordsRequest.DeleteRecordsTopic
    alter = admin.AlterConfigsRequest.AlterConfigsResource
    incremental = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
    described = admin.DescribeConfigsRequest.DescribeConfigsResource
    moved = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    removed = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
    leaving = consumer.LeaveGroupRequest.MemberIdentity
    later = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    fetched = consumer.OffsetFetchRequest.OffsetFetchRequestGroup
    produced = ProduceRequest(None, 1, 1, (ProduceTopic("t", (ProducePartition(0, memoryview(batch(b"v"))),)),))
    requested = FetchRequest(
        0, 0, 1 << 20, 0, 0, -1, (FetchTopic("t", uuid.UUID(int=0), (FetchPartition(0, -1, 0, 99),)),)
    )
    return {
        api.PRODUCE: [(produced, "write topic:t")],
        api.FETCH: [(requested, "read topic:t")],
        api.LIST_OFFSETS: [
            (
                consumer.ListOffsetsRequest(
                    topics=[offsets(name="t", partitions=[offsets.ListOffsetsPartition(timestamp=-1)])]
                ),
                "read topic:t",
            )
        ],
        api.METADATA: [
            (
                metadata.MetadataRequest(topics=[metadata.MetadataRequest.MetadataRequestTopic(name="t")]),
                "read topic:t",
            )
        ],
        api.OFFSET_COMMIT: [
            (
                consumer.OffsetCommitRequest(
                    group_id="g",
                    generation_id_or_member_epoch=-1,
                    topics=[topics(name="t", partitions=[topics.OffsetCommitRequestPartition(committed_offset=0)])],
                ),
                "read topic:t and group:g",
            )
        ],
        api.CONSUMER_GROUP_HEARTBEAT: [
            (
                messages.ConsumerGroupHeartbeatRequest(
                    group_id="g",
                    member_id="m",
                    member_epoch=0,
                    rebalance_timeout_ms=10_000,
                    subscribed_topic_names=["t"],
                    topic_partitions=[],
                ),
                "read topic:t and group:g",
            )
        ],
        api.CONSUMER_GROUP_DESCRIBE: [(messages.ConsumerGroupDescribeRequest(group_ids=["g"]), "read group:g")],
        api.OFFSET_FETCH: [
            (consumer.OffsetFetchRequest(groups=[fetched(group_id="g", topics=None)]), "read group:g"),
            (
                consumer.OffsetFetchRequest(
                    groups=[
                        fetched(
                            group_id="g",
                            topics=[fetched.OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
                        )
                    ]
                ),
                "read group:g and topic:t",
            ),
        ],
        api.FIND_COORDINATOR: [(metadata.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), "read group:g")],
        api.JOIN_GROUP: [(consumer.JoinGroupRequest(group_id="g", member_id="x"), "read group:g")],
        api.HEARTBEAT: [(consumer.HeartbeatRequest(group_id="g", member_id="x"), "read group:g")],
        api.LEAVE_GROUP: [(consumer.LeaveGroupRequest(group_id="g", members=[leaving(member_id="x")]), "read group:g")],
        api.SYNC_GROUP: [(consumer.SyncGroupRequest(group_id="g", member_id="x"), "read group:g")],
        api.DESCRIBE_GROUPS: [(admin.DescribeGroupsRequest(groups=["g"]), "read group:g")],
        api.DELETE_GROUPS: [(admin.DeleteGroupsRequest(groups_names=["g"]), "admin group:g")],
        api.OFFSET_DELETE: [
            (
                consumer.OffsetDeleteRequest(
                    group_id="g",
                    topics=[removed(name="t", partitions=[removed.OffsetDeleteRequestPartition(partition_index=0)])],
                ),
                "admin group:g and topic:t",
            )
        ],
        api.CREATE_TOPICS: [
            (
                admin.CreateTopicsRequest(
                    topics=[
                        admin.CreateTopicsRequest.CreatableTopic(
                            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
                        )
                    ]
                ),
                "admin topic:t",
            )
        ],
        api.DELETE_TOPICS: [
            (
                admin.DeleteTopicsRequest(topics=[admin.DeleteTopicsRequest.DeleteTopicState(name="t")]),
                "admin topic:t",
            )
        ],
        api.DELETE_RECORDS: [
            (
                admin.DeleteRecordsRequest(
                    topics=[records(name="t", partitions=[records.DeleteRecordsPartition(offset=0)])]
                ),
                "admin topic:t",
            )
        ],
        api.CREATE_PARTITIONS: [
            (
                admin.CreatePartitionsRequest(
                    topics=[admin.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)]
                ),
                "admin topic:t",
            )
        ],
        api.ALTER_CONFIGS: [
            (
                admin.AlterConfigsRequest(resources=[alter(resource_type=2, resource_name="t", configs=[])]),
                "admin topic:t",
            )
        ],
        api.INCREMENTAL_ALTER_CONFIGS: [
            (
                admin.IncrementalAlterConfigsRequest(
                    resources=[incremental(resource_type=2, resource_name="t", configs=[])]
                ),
                "admin topic:t",
            )
        ],
        api.DESCRIBE_CONFIGS: [
            (
                admin.DescribeConfigsRequest(
                    resources=[described(resource_type=2, resource_name="t", configuration_keys=[])]
                ),
                "read topic:t",
            ),
            (
                admin.DescribeConfigsRequest(
                    resources=[described(resource_type=4, resource_name="1", configuration_keys=[])]
                ),
                "admin *",
            ),
            (
                admin.DescribeConfigsRequest(
                    resources=[described(resource_type=32, resource_name="g", configuration_keys=[])]
                ),
                "read group:g",
            ),
        ],
        api.ELECT_LEADERS: [(admin.ElectLeadersRequest(topic_partitions=None), "admin *")],
        api.DESCRIBE_TOPIC_PARTITIONS: [
            (
                admin.DescribeTopicPartitionsRequest(
                    topics=[admin.DescribeTopicPartitionsRequest.TopicRequest(name="t")], cursor=None
                ),
                "read topic:t",
            )
        ],
        api.ALTER_REPLICA_LOG_DIRS: [
            (
                admin.AlterReplicaLogDirsRequest(
                    dirs=[
                        moved(
                            path="/elsewhere",
                            topics=[moved.AlterReplicaLogDirTopic(name="t", partitions=[0])],
                        )
                    ]
                ),
                "admin *",
            )
        ],
        api.DESCRIBE_LOG_DIRS: [(admin.DescribeLogDirsRequest(topics=None), "admin *")],
        api.OFFSET_FOR_LEADER_EPOCH: [
            (
                consumer.OffsetForLeaderEpochRequest(
                    topics=[
                        epochs(
                            topic="t",
                            partitions=[
                                epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
                            ],
                        )
                    ]
                ),
                "read topic:t",
            )
        ],
        api.INIT_PRODUCER_ID: [
            (producer.InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1), "write topic:t"),
            (
                producer.InitProducerIdRequest(
                    transactional_id="x", transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
                ),
                "write transaction:x",
            ),
        ],
        api.ADD_PARTITIONS_TO_TXN: [
            (
                producer.AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="x",
                    v3_and_below_topics=[
                        producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
                    ],
                ),
                "write transaction:x and topic:t",
            )
        ],
        api.ADD_OFFSETS_TO_TXN: [
            (
                producer.AddOffsetsToTxnRequest(transactional_id="x", group_id="g"),
                "write transaction:x and read group:g",
            )
        ],
        api.TXN_OFFSET_COMMIT: [
            (
                producer.TxnOffsetCommitRequest(
                    transactional_id="x",
                    group_id="g",
                    topics=[
                        later(
                            name="t",
                            partitions=[
                                later.TxnOffsetCommitRequestPartition(
                                    partition_index=0, committed_offset=1, committed_metadata=""
                                )
                            ],
                        )
                    ],
                ),
                "write transaction:x and read group:g",
            )
        ],
        api.END_TXN: [(producer.EndTxnRequest(transactional_id="x", committed=True), "write transaction:x")],
        api.DESCRIBE_PRODUCERS: [
            (
                admin.DescribeProducersRequest(
                    topics=[admin.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
                ),
                "read topic:t",
            )
        ],
        # APIs without a required permission; the lists are tested below.
        **{
            key: []
            for key in (
                api.API_VERSIONS,
                api.SASL_HANDSHAKE,
                api.SASL_AUTHENTICATE,
                api.DESCRIBE_CLUSTER,
                api.DESCRIBE_ACLS,
                api.CREATE_ACLS,
                api.DELETE_ACLS,
                api.LIST_GROUPS,
                api.LIST_TRANSACTIONS,
                api.DESCRIBE_TRANSACTIONS,
            )
        },
    }


def codes(response: Any) -> Iterator[int]:
    """Yields all error codes of a response at any depth."""
    if hasattr(response, "_asdict"):
        yield from codes(response._asdict())
    elif isinstance(response, (list, tuple)):
        for item in response:
            yield from codes(item)
    elif isinstance(response, dict):
        for name, value in response.items():
            yield from (value,) if name in ("error_code", "partition_error_code", "error") else codes(value)
    elif hasattr(response, "to_dict"):
        yield from codes(response.to_dict())
    elif dataclasses.is_dataclass(response):
        yield from codes({field.name: getattr(response, field.name) for field in dataclasses.fields(response)})


FORBIDDEN = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


async def handle_request(node: BrokerNode, key: int, request: Any, login: Login) -> Any:
    version = min(api.BY_KEY[key].highest, 12)
    if key not in (api.PRODUCE, api.FETCH):
        request = HANDLERS[key].decode(memoryview(bytes(request.encode(version=version))), 0, version)
    result = HANDLERS[key].handle(RequestContext(node, version, "c", "127.0.0.1", login), request)
    return await result if inspect.isawaitable(result) else result


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        try:
            await work(node)
        finally:
            await node.close()

    asyncio.run(main())


def test_permission_table_covers_every_api() -> None:
    assert set(permission_cases()) == set(HANDLERS)


@pytest.mark.parametrize(
    ("key", "at"), [(key, at) for key, rows in permission_cases().items() for at in range(len(rows))]
)
def test_each_request_requires_exactly_its_permissions(tmp_path: Path, key: int, at: int) -> None:
    request, required = permission_cases()[key][at]
    permission = required.partition(" ")[0]
    granted = [each if " " in each else f"{permission} {each}" for each in required.split(" and ")]
    insufficient: list[tuple[str, ...]] = [(), ("read topic:other", "admin group:other", "admin transaction:other")]
    if key != api.INIT_PRODUCER_ID:  # InitProducerId accepts the write permission on any topic
        insufficient.append(("admin topic:other", "admin group:other"))
    if len(granted) > 1:
        insufficient += [(each,) for each in granted]
    if permission == "admin":
        insufficient.append(("read *", "write *"))
    if permission == "write":
        insufficient.append(("read *",))
    if key == api.FETCH:
        insufficient.append(("write *",))

    async def work(node: BrokerNode) -> None:
        if key != api.CREATE_TOPICS:
            node.changes.create_topic("t", 2, {})
        if key == api.OFFSET_DELETE:
            node.groups.store.add_group("g")
        for grants in insufficient:
            assert FORBIDDEN & set(codes(await handle_request(node, key, request, login_with(*grants)))), grants
        assert not FORBIDDEN & set(codes(await handle_request(node, key, request, login_with(*granted))))

    with_node(tmp_path, work)


def test_lists_contain_only_permitted_resources(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("a.x", "a.y", "b"):
            node.changes.create_topic(name, 1, {})
            node.groups.store.add_group(name)
            user = await node.transactions.init_producer(name, 1000, None)
            await node.transactions.add_partitions(name, user, [("a.x", 0), ("b", 0)])
        granted = login_with("read topic:a.*", "read group:b", "write transaction:a.*")
        context = RequestContext(node, 5, "c", "127.0.0.1", granted)
        response = HANDLERS[api.METADATA].handle(context, metadata.MetadataRequest(topics=None))
        assert sorted(topic.name for topic in response.topics) == ["a.x", "a.y"]
        request = admin.ListGroupsRequest(states_filter=[], types_filter=[])
        listed = await HANDLERS[api.LIST_GROUPS].handle(context, request)
        assert [group.group_id for group in listed.groups] == ["b"]
        requested = admin.ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
        context = RequestContext(node, 1, "c", "127.0.0.1", granted)
        shown = HANDLERS[api.LIST_TRANSACTIONS].handle(context, requested)
        assert sorted(one.transactional_id for one in shown.transaction_states) == ["a.x", "a.y"]
        both = admin.DescribeTransactionsRequest(transactional_ids=["a.x", "b"])
        response = HANDLERS[api.DESCRIBE_TRANSACTIONS].handle(RequestContext(node, 0, "c", "", granted), both)
        assert [one.error_code for one in response.transaction_states] == [
            ErrorCode.NONE,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ]
        assert [topic.topic for topic in response.transaction_states[0].topics] == ["a.x"]

    with_node(tmp_path, work)


def test_offsets_of_unpermitted_topics_are_neither_returned_nor_deleted(tmp_path: Path) -> None:
    """The response does not reveal whether the topic exists either."""

    async def work(node: BrokerNode) -> None:
        keys = [("a", 0), ("b", 0)]
        for name, _ in keys:
            node.changes.create_topic(name, 1, {})
        await node.groups.commits.store("g", {key: CommittedOffset(7, -1, "", NOW_MS) for key in keys})
        granted = login_with("admin group:g", "read topic:a")
        group = consumer.OffsetFetchRequest.OffsetFetchRequestGroup
        requested = [group.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("a", "b", "none")]
        request = consumer.OffsetFetchRequest(groups=[group(group_id="g", topics=requested)])
        response = (await handle_request(node, api.OFFSET_FETCH, request, granted)).groups[0]
        found = [(one.error_code, one.committed_offset) for topic in response.topics for one in topic.partitions]
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert found == [(ErrorCode.NONE, 7), (refused, -1), (refused, -1)]
        doomed = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
        one = doomed.OffsetDeleteRequestPartition(partition_index=0)
        request = consumer.OffsetDeleteRequest(
            group_id="g", topics=[doomed(name=name, partitions=[one]) for name in ("a", "b", "none")]
        )
        response = await handle_request(node, api.OFFSET_DELETE, request, granted)
        assert list(codes(response))[-3:] == [ErrorCode.NONE, refused, refused]
        assert list(node.groups.offsets.of_group("g")) == [("b", 0)]

    with_node(tmp_path, work)


def test_delete_by_id_does_not_reveal_name_of_unpermitted_topic(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("hidden", 1, {})
        state = admin.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.topic_id)
        response = await handle_request(
            node, api.DELETE_TOPICS, admin.DeleteTopicsRequest(topics=[state]), login_with("read topic:t")
        )
        [response] = response.responses
        assert (response.error_code, response.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        assert "hidden" not in response.error_message and node.topics.get("hidden") is topic

    with_node(tmp_path, work)


def test_metadata_creates_topic_only_with_write_permission(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for permission in BrokerPermission:
            name = f"new-{permission}"
            request = metadata.MetadataRequest(
                topics=[metadata.MetadataRequest.MetadataRequestTopic(name=each) for each in (name, "other")],
                allow_auto_topic_creation=True,
            )
            result = HANDLERS[api.METADATA].handle(
                RequestContext(node, 5, "c", "", login_with(f"{permission} topic:new*")), request
            )
            response = await result if hasattr(result, "__await__") else result
            expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if permission is BrokerPermission.READ else ErrorCode.NONE
            assert [topic.error_code for topic in response.topics] == [
                expected,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ]
            assert node.topics.get("other") is None

    with_node(tmp_path, work)


def test_without_users_everything_is_permitted() -> None:
    ALL_PERMISSIONS.check(ResourceType.TOPIC, "t", BrokerPermission.ADMIN)
    ALL_PERMISSIONS.check_admin()
    assert ALL_PERMISSIONS.granted_on(ResourceType.GROUP, "g") == frozenset(BrokerPermission)
    with pytest.raises(RequestRefused, match=r"read.*'t'") as refused:
        BrokerPermissions().check(ResourceType.TOPIC, "t", BrokerPermission.READ)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Rates and connections


def test_rate_limiter_returns_wait_until_bytes_fit_rate() -> None:
    rates = ByteRateLimiter(1000)
    assert rates.take("a", 1000, 10.0) == 0.0  # no wait after a pause
    assert rates.take("a", 500, 10.0) == pytest.approx(0.5)
    assert rates.take("b", 500, 10.0) == 0.0
    assert rates.take("a", 0, 10.2) == pytest.approx(0.3)
    assert rates.take("a", 0, 100.0) == 0.0
    assert rates.take("a", 2000, 100.0) == pytest.approx(2.0 - BURST_S)
    for number in range(CLIENTS_MAX):
        rates.take(str(number), 1, 200.0)
    assert len(rates._paid_until_s) == CLIENTS_MAX


def test_client_above_rate_waits_and_others_do_not(tmp_path: Path) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        loop = asyncio.get_running_loop()
        counted: list[tuple[str, int]] = []
        take = server.connections.rates.take  # type: ignore[union-attr]
        waits = iter([0.4])

        def recorded(client_key: str, byte_count: int, now_s: float) -> float:
            counted.append((client_key, byte_count))
            take(client_key, byte_count, now_s)
            return next(waits, 0.0)

        server.connections.rates.take = recorded  # type: ignore[method-assign, union-attr]
        began_s = loop.time()
        body = struct.pack(">i", 0)
        response = await client.request(api.METADATA, 1, body)
        assert counted == [("127.0.0.1", 10 + len(body)), ("127.0.0.1", len(response))]
        assert await client.request(api.METADATA, 1, body)
        assert loop.time() - began_s >= 0.4

    with_server(tmp_path, work, bytes_per_second_max=1_000_000)


def test_throttled_client_stays_group_member(tmp_path: Path) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        assert await client.request(api.METADATA, 1, struct.pack(">i", 0))
        server.connections.rates.take("127.0.0.1", 3600 * 1_000_000, asyncio.get_running_loop().time())  # type: ignore[union-attr]
        heartbeat = struct.pack(">h1sih1s", 1, b"g", 1, 1, b"m")
        for _ in range(2):
            response = await client.request(api.HEARTBEAT, 0, heartbeat)
            assert response.endswith(struct.pack(">h", ErrorCode.UNKNOWN_MEMBER_ID))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.request(api.METADATA, 1, struct.pack(">i", 0))

    with_server(tmp_path, work, bytes_per_second_max=1_000_000)


@pytest.mark.parametrize(("rate", "expected"), [(1, 1), (1000, 3), (0, 10)])
def test_fetch_response_of_rate_limited_client_holds_one_second(tmp_path: Path, rate: int, expected: int) -> None:
    """It holds at least one batch; the last one may be truncated."""

    async def work(server: BrokerServer, client: Client) -> None:
        node = server.node
        node.changes.create_topic("t", 1, {})
        for _ in range(10):
            one = batch(b"x" * 200)
            node.log("t", 0).append(one, read_batch_header(one), NOW_MS)
        requested = struct.pack(">iiiibih1siiqi", -1, 0, 1, 1 << 20, 0, 1, 1, b"t", 1, 0, 0, 1 << 20)
        response = await client.request(api.FETCH, 4, requested)
        assert response.count(b"x" * 200) == expected

    with_server(tmp_path, work, bytes_per_second_max=rate)


def test_connections_per_address_are_limited(tmp_path: Path) -> None:
    async def work(server: BrokerServer, client: Client) -> None:
        second = await connect(server)
        assert await second.topics() and await client.topics()
        third = await connect(server)
        assert await third.topics() == b""
        client.writer.close()
        while len(server.connections.open) > 1:
            await asyncio.sleep(0.01)
        assert await (await connect(server)).topics()

    with_server(tmp_path, work, connections_per_address_max=2)
