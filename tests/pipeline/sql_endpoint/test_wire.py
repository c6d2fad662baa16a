"""The login and the framing of the SQL endpoint, with valid and hostile bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from TCLIService import ttypes

from headrace.pipeline.sql_endpoint import messages, wire
from headrace.pipeline.sql_endpoint.wire import PlainCredentials, SaslStatus, WireError


def reader(content: bytes) -> Callable[[int], bytes]:
    stream = io.BytesIO(content)

    def read(count: int) -> bytes:
        found = stream.read(count)
        if len(found) < count:
            raise EOFError
        return found

    return read


def login(status: int, body: bytes) -> bytes:
    return struct.pack(">BI", status, len(body)) + body


START = login(SaslStatus.START, b"PLAIN")


@pytest.mark.parametrize("status", [SaslStatus.OK, SaslStatus.COMPLETE])
@pytest.mark.parametrize(
    ("body", "user", "password"),
    [
        (b"\0alice\0secret", "alice", "secret"),
        (b"alice\0alice\0se:cret", "alice", "se:cret"),
        ("\0alice\0pä ss".encode(), "alice", "pä ss"),
        (b"\0alice\0", "alice", ""),
    ],
)
def test_credentials_of_both_clients_are_read(status: int, body: bytes, user: str, password: str) -> None:
    # PyHive sends the credentials with OK, Hive's JDBC driver with COMPLETE.
    assert wire.read_credentials(reader(START + login(status, body))) == PlainCredentials(user, password)


def test_password_is_not_in_the_text_of_credentials() -> None:
    assert "secret" not in repr(PlainCredentials("alice", "secret"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (login(SaslStatus.START, b"GSSAPI"), "not PLAIN"),
        (login(SaslStatus.OK, b"PLAIN"), "begins with status 2"),
        (login(SaslStatus.COMPLETE, b""), "begins with status 5"),
        (START + login(SaslStatus.BAD, b""), "ended the login"),
        (START + login(SaslStatus.START, b"\0alice\0secret"), "ended the login"),
        (START + login(SaslStatus.OK, b"\0alice"), "PLAIN"),
        (START + login(SaslStatus.OK, b"\0alice\0secret\0more"), "PLAIN"),
        (START + login(SaslStatus.OK, b"root\0alice\0secret"), "authorization identity"),
        (START + login(SaslStatus.OK, b"\0\0secret"), "empty"),
        (START + login(SaslStatus.OK, b"\0\xff\0secret"), "UTF-8"),
        (struct.pack(">BI", SaslStatus.START, wire.LOGIN_BYTES_MAX + 1), "at most"),
        (START + struct.pack(">BI", SaslStatus.OK, 2**32 - 1), "at most"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "sql.tls_certificate"),
        (b"\x80\x01\x00\x01\x00\x00\x00\x0bOpenSession", "does not log in"),
        (b"GET / HTTP/1.1\r\n", "at most"),
    ],
)
def test_login_rejects_everything_else(content: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason) as failure:
        wire.read_credentials(reader(content))
    assert "secret" not in str(failure.value)


@given(st.binary(max_size=200))
def test_login_of_garbage_ends_in_an_error_of_ours(content: bytes) -> None:
    with pytest.raises((WireError, EOFError)):
        wire.read_credentials(reader(content))


def test_login_messages_of_the_server() -> None:
    assert wire.login_message(SaslStatus.COMPLETE) == b"\x05\0\0\0\0"
    assert wire.login_message(SaslStatus.BAD, "ä") == b"\x03\0\0\0\x02\xc3\xa4"


def test_login_body_of_the_maximum_is_accepted() -> None:
    body = b"\0alice\0" + b"x" * (wire.LOGIN_BYTES_MAX - 7)
    assert wire.read_credentials(reader(START + login(SaslStatus.OK, body))).user == "alice"


@pytest.mark.parametrize("length", [0, wire.REQUEST_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_message_length_is_checked_before_the_message_is_read(length: int) -> None:
    asked: list[int] = []

    def read(count: int) -> bytes:
        asked.append(count)
        return struct.pack(">I", length)

    with pytest.raises(WireError, match="expected 1 to"):
        wire.read_message(read)
    assert asked == [4]


def test_framed_message_is_read_back() -> None:
    for message in (b"x", b"y" * wire.REQUEST_BYTES_MAX):
        assert wire.read_message(reader(wire.frame(message) + message + b"rest")) == message


def session_handle(guid: bytes = b"g" * 16, secret: bytes = b"s" * 16) -> ttypes.TSessionHandle:
    return ttypes.TSessionHandle(sessionId=ttypes.THandleIdentifier(guid=guid, secret=secret))


EXECUTE = messages.Request(
    "ExecuteStatement",
    7,
    ttypes.TExecuteStatementReq(sessionHandle=session_handle(), statement="SELECT 'ä'", confOverlay={"a": "b"}),
)


def test_request_is_decoded_as_it_was_encoded() -> None:
    decoded = messages.decode_request(messages.encode_request(EXECUTE))
    assert (decoded.method, decoded.sequence_id, decoded.body) == ("ExecuteStatement", 7, EXECUTE.body)


@pytest.mark.parametrize("method", sorted(messages.METHODS))
def test_every_method_has_an_error_response_that_clients_decode(method: str) -> None:
    response = messages.decode_response(method, messages.error_response(method, 3, "no", "42501"))
    assert (response.status.statusCode, response.status.errorMessage, response.status.sqlState) == (
        ttypes.TStatusCode.ERROR_STATUS,
        "no",
        "42501",
    )


def test_unknown_method_is_named_and_the_connection_can_continue() -> None:
    message = messages.encode_request(EXECUTE).replace(b"ExecuteStatement", b"UploadUserXFiles")
    with pytest.raises(messages.UnknownMethodError) as failure:
        messages.decode_request(message)
    assert (failure.value.method, failure.value.sequence_id) == ("UploadUserXFiles", 7)
    assert messages.decode_response("x", messages.exception_response("x", 7, "no")) is None


@given(st.binary(max_size=300))
def test_garbage_is_not_a_request(message: bytes) -> None:
    with pytest.raises((WireError, messages.UnknownMethodError)):
        messages.decode_request(message)


@given(st.data())
def test_damaged_request_is_decoded_or_rejected(data: st.DataObject) -> None:
    message = bytearray(messages.encode_request(EXECUTE))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        request = messages.decode_request(bytes(message[: data.draw(st.integers(0, len(message)))]))
    except (WireError, messages.UnknownMethodError):
        return
    assert request.method in messages.METHODS


@pytest.mark.parametrize(
    "message",
    [
        # a string of 2 GB, a map of two thousand million entries, and nested structures
        b"\x80\x01\x00\x01\x7f\xff\xff\xffOpenSession",
        b"\x80\x01\x00\x01\x00\x00\x00\x0bOpenSession\x00\x00\x00\x01\x0c\x00\x01\x0d\x00\x04\x0b\x0b\x7f\xff\xff\xff",
        b"\x80\x01\x00\x01\x00\x00\x00\x0bOpenSession\x00\x00\x00\x01" + b"\x0c\x00\x09" * 10_000,
        b"\x80\x01\x00\x02\x00\x00\x00\x0bOpenSession\x00\x00\x00\x01\x00",  # a reply
        b"\x00\x00\x00\x0bOpenSession\x01\x00\x00\x00\x01\x00",  # without a version
        b"\x80\x01\x00\x01\x00\x00\x00\x0bOpenSession\x00\x00\x00\x01\x00",  # without a body
    ],
)
def test_hostile_request_is_rejected(message: bytes) -> None:
    with pytest.raises(WireError):
        messages.decode_request(message)


def test_client_without_sasl_gets_an_exception_for_its_request() -> None:
    message = messages.encode_request(EXECUTE)
    assert messages.no_sasl_header(message[:5], reader(message[5:])) == ("ExecuteStatement", 7)
    with pytest.raises(WireError):
        messages.no_sasl_header(b"\x80\x01\x00\x01\xff", reader(b"\xff" * 100))
