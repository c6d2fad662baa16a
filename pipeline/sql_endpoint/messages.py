"""The requests and responses of HiveServer2's Thrift service (TCLIService) as bytes.

A request is decoded with the Thrift classes of PyHive, changed where `sessions` requires it, and encoded again: Spark
receives no bytes that were not decoded here. Responses are forwarded unchanged; a response that opens a session or
starts an operation is also decoded, for its handle.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from TCLIService import TCLIService, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from headrace.pipeline.sql_endpoint.wire import REQUEST_BYTES_MAX, WireError

SQLSTATE_DENIED: Final = "42501"
SQLSTATE_INTERNAL: Final = "58030"
METHOD_BYTES_MAX: Final = 64
CONTAINER_MAX: Final = 10_000  # entries of a map or list in a request

METHODS: Final[Mapping[str, str]] = {
    "OpenSession": "OpenSession",
    "CloseSession": "CloseSession",
    "GetInfo": "GetInfo",
    "ExecuteStatement": "ExecuteStatement",
    "GetTypeInfo": "GetTypeInfo",
    "GetCatalogs": "GetCatalogs",
    "GetSchemas": "GetSchemas",
    "GetTables": "GetTables",
    "GetTableTypes": "GetTableTypes",
    "GetColumns": "GetColumns",
    "GetFunctions": "GetFunctions",
    "GetPrimaryKeys": "GetPrimaryKeys",
    "GetCrossReference": "GetCrossReference",
    "GetOperationStatus": "GetOperationStatus",
    "CancelOperation": "CancelOperation",
    "CloseOperation": "CloseOperation",
    "GetResultSetMetadata": "GetResultSetMetadata",
    "FetchResults": "FetchResults",
    "GetDelegationToken": "",
    "CancelDelegationToken": "",
    "RenewDelegationToken": "",
}
"""The methods of the service. Those with an empty value are always denied: they have no use here."""


@dataclass(slots=True)
class Request:
    """A decoded request. `body` is the request structure of the method, such as `TOpenSessionReq`."""

    method: str
    sequence_id: int
    body: Any


class UnknownMethodError(Exception):
    """The request has a method that the endpoint does not implement."""

    def __init__(self, method: str, sequence_id: int) -> None:
        super().__init__(f"the SQL endpoint has no method {method}")
        self.method = method
        self.sequence_id = sequence_id


def decode_request(message: bytes) -> Request:
    """Decodes the bytes of a request.

    Raises:
        UnknownMethodError: the method is unknown; the connection can be continued.
        WireError: the bytes are not a request.
    """
    method, sequence_id = _decode_header(message)
    if method not in METHODS:
        raise UnknownMethodError(method, sequence_id)
    protocol = _protocol(message)
    arguments = getattr(TCLIService, f"{method}_args")()
    try:
        protocol.readMessageBegin()
        arguments.read(protocol)
    except Exception as error:  # Thrift's classes raise many types for garbage
        raise WireError(f"the request {method} cannot be decoded") from error
    if arguments.req is None:
        raise WireError(f"the request {method} has no body")
    return Request(method, sequence_id, arguments.req)


def _decode_header(message: bytes) -> tuple[str, int]:
    try:
        name, kind, sequence_id = _protocol(message).readMessageBegin()
    except Exception as error:
        raise WireError("the message is not a Thrift request in the binary protocol") from error
    if kind not in (TMessageType.CALL, TMessageType.ONEWAY) or not name.isascii() or not name.isidentifier():
        raise WireError("the message is not a Thrift request")
    return name[:METHOD_BYTES_MAX], sequence_id


def encode_request(request: Request) -> bytes:
    arguments = getattr(TCLIService, f"{request.method}_args")(request.body)
    return _encode(request.method, TMessageType.CALL, request.sequence_id, arguments)


def decode_response(method: str, message: bytes) -> Any:
    """Decodes a response of Spark, such as `TOpenSessionResp`. Returns None if it is an exception of Thrift."""
    protocol = TBinaryProtocol(TMemoryBuffer(message))
    _, kind, _ = protocol.readMessageBegin()
    if kind == TMessageType.EXCEPTION:
        return None
    result = getattr(TCLIService, f"{method}_result")()
    result.read(protocol)
    return result.success


def error_response(method: str, sequence_id: int, reason: str, sqlstate: str) -> bytes:
    """Returns the response to a request that failed, with the status ERROR."""
    status = ttypes.TStatus(
        statusCode=ttypes.TStatusCode.ERROR_STATUS, sqlState=sqlstate, errorCode=0, errorMessage=reason
    )
    body = getattr(ttypes, f"T{method}Resp")(status=status)
    if method == "OpenSession":  # required by clients
        body.serverProtocolVersion = ttypes.TProtocolVersion.HIVE_CLI_SERVICE_PROTOCOL_V10
    if method == "GetInfo":
        body.infoValue = ttypes.TGetInfoValue(stringValue="")
    return _encode(method, TMessageType.REPLY, sequence_id, getattr(TCLIService, f"{method}_result")(body))


def exception_response(method: str, sequence_id: int, reason: str) -> bytes:
    """Returns Thrift's exception, for requests that have no response structure."""
    body = TApplicationException(TApplicationException.UNKNOWN_METHOD, reason)
    return _encode(method, TMessageType.EXCEPTION, sequence_id, body)


def no_sasl_header(start: bytes, read: Any) -> tuple[str, int]:
    """Reads the method and the sequence id of a request without SASL, which has the bytes `start` already read.

    Raises:
        WireError: the bytes are not a request.
        EOFError: the connection ended.
    """
    header = start + read(8 - len(start))
    version, length = struct.unpack(">II", header)
    if version >> 16 != 0x8001 or length > METHOD_BYTES_MAX:
        raise WireError("the first bytes are neither SASL nor a Thrift request")
    rest = read(length + 4)
    return _decode_header(header + rest)


def _protocol(message: bytes) -> TBinaryProtocol:
    # The accelerated decoder ignores the limits.
    return TBinaryProtocol(
        TMemoryBuffer(message),
        strictRead=True,
        string_length_limit=REQUEST_BYTES_MAX,
        container_length_limit=CONTAINER_MAX,
    )


def _encode(method: str, kind: int, sequence_id: int, body: Any) -> bytes:
    transport = TMemoryBuffer()
    protocol = TBinaryProtocol(transport)
    protocol.writeMessageBegin(method, kind, sequence_id)
    body.write(protocol)
    protocol.writeMessageEnd()
    return bytes(transport.getvalue())
