"""The registry client against servers that fail, reject, redirect or are down."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry import errors
from headrace.registry.client import ATTEMPTS_MAX, BasicAuth, BearerAuth, RegistryClient, Tls, transport
from headrace.registry.client.access import parse_servers
from headrace.registry.client.transport import PAUSE_FIRST_S, PAUSE_MAX_S, TIMEOUTS_MAX, ApiCall, Transport
from support.cases import all_cases
from support.certificates import Authority
from support.logs import logged
from support.registry.registry_calls import STRING
from support.registry.scripted_http import BREAK_OFF, ReceivedRequest, ScriptedServer, scripted_server

PASSWORD = "open ,@: sesame"
RESPONSE = {"id": 3, "version": 1, "schema": STRING, "subject": "s"}
STORE_FAILED = (500, {"error_code": 50001, "message": "Error while listing"})


def is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error was raised from one of this class, directly or indirectly."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__
    return cause is not None


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts scripted servers: a list of responses (the last one repeats), or a function of the request."""
    with ExitStack() as stack:

        def start(script: Any, **options: Any) -> ScriptedServer:
            if callable(script):
                return stack.enter_context(scripted_server(script, **options))
            responses = list(script)
            return stack.enter_context(
                scripted_server(lambda _: responses.pop(0) if len(responses) > 1 else responses[0], **options)
            )

        yield start


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_MAX_S", 0.0)


@pytest.fixture
def closed_url() -> Iterator[str]:
    """The URL of a closed port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("response", "identity"),
    [
        ((200, {"scope": {"path": [], "clusters": {"b": "2", "a": "1"}}}), '{"a": "1", "b": "2"}'),
        ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), ""),
        ((404, "<html>no such page"), ""),
        ((405, {"error_code": 405, "message": "HTTP 405"}), ""),
        ((403, {"error_code": 40301, "message": "no"}), ""),
        ((200, {"clusters": {}}), ""),
        ((200, {"scope": {"clusters": []}}), ""),
    ],
)
def test_identity_is_empty_if_the_registry_has_none(serve: Any, response: tuple[int, Any], identity: str) -> None:
    assert RegistryClient(serve([response]).url).identity() == identity


def test_identity_raises_on_server_errors(serve: Any) -> None:
    with pytest.raises(errors.StoreError):
        RegistryClient(serve([STORE_FAILED]).url).identity()
    with pytest.raises(errors.ServiceError):
        RegistryClient(serve([(401, {"error_code": 40101, "message": "who?"})]).url).identity()


def test_immutable_results_are_requested_once(serve: Any) -> None:
    server = serve([(200, RESPONSE)])
    client = RegistryClient(server.url)
    for _ in range(3):
        client.register("s", STRING)
        client.schema_by_id(3)
        client.version("s", 1)
    assert len(server.requests) == 3
    client.version("s", "latest")
    client.version("s", "latest")
    assert len(server.requests) == 5


def test_response_with_id_only_is_completed_by_a_lookup(serve: Any) -> None:
    def respond(request: ReceivedRequest) -> tuple[int, Any]:
        if request.line.startswith("POST /subjects/s/versions"):
            return 200, {"id": 3}
        return 200, {"subject": "s", "version": 2, "id": 3, "schema": STRING}

    registered = RegistryClient(serve(respond).url).register("s", STRING)
    assert (registered.schema_id, registered.version, registered.guid) == (3, 2, "")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_transient_statuses_are_retried(serve: Any, status: int) -> None:
    server = serve([(status, "busy"), (200, [])])
    assert RegistryClient(server.url).subjects() == []
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 501, 505])
def test_permanent_statuses_are_not_retried(serve: Any, status: int) -> None:
    server = serve([(status, {"error_code": status * 100 + 99, "message": "no"})])
    with pytest.raises(errors.AccessDenied if status == 403 else errors.ServiceError) as refused:
        RegistryClient(server.url).subjects()
    if isinstance(refused.value, errors.ServiceError):
        assert (refused.value.status, refused.value.error_code) == (status, status * 100 + 99)
    assert len(server.requests) == 1


def test_persistent_failure_is_reported(serve: Any, closed_url: str) -> None:
    server = serve([STORE_FAILED])
    with pytest.raises(errors.StoreError, match="Error while listing"):
        RegistryClient(server.url).subjects()
    assert len(server.requests) == ATTEMPTS_MAX
    with pytest.raises(errors.RegistryUnavailable, match=closed_url) as unavailable:
        RegistryClient(closed_url).subjects()
    assert unavailable.value.url == closed_url
    for wrong in ("ftp://x", "127.0.0.1:8081", "http://x:99999", "", "http://", "http://x?y=1", ","):
        with pytest.raises(errors.RegistryUnavailable):
            RegistryClient(wrong)


def test_register_is_retried_after_a_lost_response(serve: Any) -> None:
    server = serve([BREAK_OFF, (200, RESPONSE)])
    assert RegistryClient(server.url).register("s", STRING).schema_id == 3
    assert server.lines == ["POST /subjects/s/versions"] * 2


@pytest.mark.parametrize("first", [BREAK_OFF, (502, "bad gateway"), STORE_FAILED], ids=str)
def test_deletion_is_not_retried_after_a_lost_response(serve: Any, first: Any) -> None:
    server = serve([(200, []), first, (200, 1)])
    client = RegistryClient(server.url)
    client.subjects()  # leaves an idle connection, which a deletion must not use
    with pytest.raises(errors.RegistryError) as caught:
        client.delete_version("s", "latest")
    assert server.lines[1:] == ["DELETE /subjects/s/versions/latest"]
    assert isinstance(caught.value, errors.RegistryUnavailable) == (first is BREAK_OFF)


@pytest.mark.parametrize("status", [408, 429])
def test_deletion_is_retried_if_it_was_not_executed(serve: Any, closed_url: str, status: int) -> None:
    server = serve([(status, "busy"), (200, 1)])
    assert RegistryClient(f"{closed_url},{server.url}").delete_version("s", 1) == 1
    assert len(server.requests) == 2


def test_responses_of_other_servers_raise_service_error(serve: Any) -> None:
    for response, error_code in [
        ((404, "<html>"), 0),
        ((200, "<html>"), 0),
        ((404, "[" * 100_000), 0),
        ((401, {"error_code": 40101, "message": "Unauthorized"}), 40101),
    ]:
        with pytest.raises(errors.ServiceError) as refused:
            RegistryClient(serve([response]).url).subjects()
        assert (refused.value.status, refused.value.error_code) == (response[0], error_code)


def test_truncated_response_is_a_failure(serve: Any) -> None:
    server = serve([(200, "[1", {"Content-Length": "3"}), (200, [])])
    assert RegistryClient(server.url).subjects() == []
    assert len(server.requests) == 2


def test_redirect_raises_an_error_with_its_target(serve: Any) -> None:
    other = serve([(200, [])])
    target = other.url.replace("//", "//user:secret@") + "/subjects"
    for status in (301, 302, 307, 308):
        server = serve([(status, "", {"Location": target})])
        with pytest.raises(errors.ServiceError, match=other.url) as refused:
            RegistryClient(server.url, auth=BasicAuth("shop", PASSWORD)).subjects()
        assert refused.value.status == status
        assert "secret" not in str(refused.value)
    assert other.requests == []


def test_idle_connection_closed_by_the_server_is_replaced(serve: Any) -> None:
    server = serve([(200, ["a"])], closes=True)
    client = RegistryClient(server.url)
    for _ in range(5):
        assert client.subjects() == ["a"]
    assert len(server.requests) == 5


def test_failover_is_immediate_and_sticky(serve: Any, closed_url: str, caplog: Any) -> None:
    waits: list[float] = []
    busy, healthy = serve([(503, "busy")]), serve([(200, [])])
    asking = Transport(parse_servers([closed_url, busy.url, healthy.url]), sleep=waits.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert asking.send(ApiCall.of("GET", "/subjects")).status == 200
    assert (waits, len(busy.requests), len(healthy.requests)) == ([], 1, 3)
    failed = [logged(caplog, "registry.client.transport", url) for url in (closed_url, busy.url)]
    assert [record for records in failed for record in records] == caplog.records and len(caplog.records) == 2


def test_preferred_server_is_tried_again_later(serve: Any) -> None:
    now = [100.0]
    first, second = serve([(503, "busy"), (200, [])]), serve([(200, [])])
    asking = Transport(parse_servers([first.url, second.url]), sleep=lambda _: None, clock=lambda: now[0])
    for expected in [(1, 1), (1, 2)]:
        asking.send(ApiCall.of("GET", "/subjects"))
        assert (len(first.requests), len(second.requests)) == expected
    now[0] += 31
    asking.send(ApiCall.of("GET", "/subjects"))
    assert (len(first.requests), len(second.requests)) == (2, 2)


def test_pauses_grow_and_respect_retry_after(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_MAX_S", PAUSE_MAX_S)
    waits: list[float] = []
    server = serve([(503, "busy", {"Retry-After": text}) for text in ("1", "soon", "86400")] + [(200, [])])
    asking = Transport(parse_servers(server.url), sleep=waits.append, random_fraction=lambda: 0.5)
    assert asking.send(ApiCall.of("GET", "/subjects")).status == 200
    assert waits == [1.0, PAUSE_FIRST_S, PAUSE_MAX_S]


def test_error_names_every_failed_server(serve: Any, closed_url: str) -> None:
    server = serve([BREAK_OFF])
    asking = Transport(parse_servers([closed_url, server.url]), sleep=lambda _: None)
    with pytest.raises(errors.RegistryUnavailable) as caught:
        asking.send(ApiCall.of("GET", "/subjects"))
    assert f"{closed_url}: Connection refused" in str(caught.value)
    assert f"{server.url}: Remote end closed" in str(caught.value)


def test_silent_server_is_tried_three_times() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asking = Transport(parse_servers(url), timeout_s=0.05)
        with pytest.raises(errors.RegistryUnavailable) as unavailable:
            asking.send(ApiCall.of("GET", "/subjects"))
        assert is_caused_by(unavailable.value, TimeoutError)
        silent.setblocking(False)
        with contextlib.ExitStack() as accepted, pytest.raises(BlockingIOError):
            for _ in range(TIMEOUTS_MAX):
                accepted.enter_context(silent.accept()[0])
            silent.accept()


def test_credentials_are_sent_to_their_server_only(serve: Any, closed_url: str, caplog: Any) -> None:
    server = serve([(401, {"error_code": 401, "message": "Unauthorized"})])
    basic = "Basic " + base64.b64encode(f"shop:{PASSWORD}".encode()).decode()
    with_user = server.url.replace("//", "//shop:open%20%2C%40%3A%20sesame@")
    tokens = iter(["first", "second"])
    caplog.set_level(logging.DEBUG)
    texts = []
    for url, auth, expected in [
        (server.url, BasicAuth("shop", PASSWORD), basic),
        (with_user, BearerAuth("unused"), basic),
        (server.url, BearerAuth("sesame"), "Bearer sesame"),
        (server.url, BearerAuth(lambda: next(tokens)), "Bearer first"),
        (server.url, None, None),
    ]:
        client = RegistryClient(url, auth=auth)
        with pytest.raises(errors.ServiceError) as refused:
            client.subjects()
        assert server.requests[-1].headers.get("authorization") == expected
        texts += [repr(client), client.url, repr(auth), str(refused.value), repr(client._transport.servers)]
    with pytest.raises(errors.RegistryUnavailable) as caught:
        RegistryClient(closed_url.replace("//", "//shop:sesame@")).subjects()
    texts += [str(caught.value), caught.value.url, caplog.text]
    assert not [text for text in texts if "sesame" in text or "c2VzYW1l" in text]


@pytest.mark.parametrize(
    "url",
    [
        "http://shop:sesame@host:x",
        "http://shop:ses,ame@host:8081",
        "http://shop:sesame/@host:8081",
        "http://shop:sesame@host:8081?x=1",
        "http://shop:sesame@[::1",
        "shop:sesame@host",
        "http://sh%3Aop:sesame@host",
        "http://shop:sesame%0D%0AX: y@host",
    ],
)
def test_error_about_a_url_hides_its_password(url: str) -> None:
    with pytest.raises(errors.RegistryUnavailable) as caught:
        RegistryClient(url)
    assert "ses" not in str(caught.value)


def test_malformed_credentials_are_rejected() -> None:
    for make in (
        lambda: BasicAuth("a:b", "sesame"),
        lambda: BasicAuth("a", "sesame\r\nX-Other: 1"),
        lambda: BearerAuth("sesame\n"),
        lambda: BearerAuth(""),
    ):
        with pytest.raises(ValueError) as caught:
            make()
        assert "sesame" not in str(caught.value)


def test_credentials_over_http_log_a_warning(caplog: Any) -> None:
    RegistryClient("http://registry.example:8081", auth=BearerAuth("sesame"))
    assert len(logged(caplog, "registry.client.transport", "http://registry.example:8081")) == len(caplog.records) == 1
    caplog.clear()
    RegistryClient("https://registry.example:8081", auth=BearerAuth("sesame"))
    RegistryClient("http://localhost:8081", auth=BearerAuth("sesame"))
    assert not caplog.records


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def server_tls(
    authority: Authority, *, hosts: tuple[str, ...] = ("127.0.0.1",), requests_certificate: bool = False
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certificate("server", hosts=hosts))
    if requests_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca_file)
    return context


def test_ca_file_replaces_the_system_s_authorities(serve: Any, authority: Authority, tmp_path: Path) -> None:
    server = serve([(200, [])], tls=server_tls(authority))
    client = RegistryClient(server.url, tls=Tls(str(authority.ca_file)))
    connections = client._transport._connections[client._transport.servers[0]]
    connections_used = []
    for _ in range(3):
        assert client.subjects() == []
        connections_used += connections._idle
    assert len(set(connections_used)) == 1
    for tls in (None, Tls(str(Authority(tmp_path, "somebody else").ca_file))):
        with pytest.raises(errors.RegistryUnavailable) as unavailable:
            RegistryClient(server.url, tls=tls).subjects()
        assert is_caused_by(unavailable.value, ssl.SSLCertVerificationError)
    with pytest.raises(errors.RegistryUnavailable):
        RegistryClient(server.url.replace("https", "http")).subjects()
    assert len(server.requests) == 3


def test_host_names_are_verified(serve: Any, authority: Authority) -> None:
    server = serve([(200, [])], tls=server_tls(authority, hosts=("localhost",)))
    tls = Tls(str(authority.ca_file))
    assert RegistryClient(server.url.replace("127.0.0.1", "localhost"), tls=tls).subjects() == []
    with pytest.raises(errors.RegistryUnavailable) as unavailable:
        RegistryClient(server.url, tls=tls).subjects()
    assert is_caused_by(unavailable.value, ssl.SSLCertVerificationError)


def test_client_certificate_is_sent(serve: Any, authority: Authority) -> None:
    server = serve([(200, [])], tls=server_tls(authority, requests_certificate=True))
    certificate, key = map(str, authority.certificate("shop", key_password="sesame"))
    tls = Tls(str(authority.ca_file), certificate, key, "sesame")
    assert "sesame" not in repr(tls)
    assert RegistryClient(server.url, tls=tls).subjects() == []
    # TLS 1.3 rejects the client after the handshake, and the closed connection may arrive before the alert.
    with pytest.raises(errors.RegistryUnavailable) as unavailable:
        RegistryClient(server.url, tls=Tls(str(authority.ca_file))).subjects()
    assert not is_caused_by(unavailable.value, ssl.SSLCertVerificationError)
    for wrong, named in (
        (Tls("missing.pem"), "missing.pem"),
        (Tls(key), key),
        (Tls("", "missing.pem"), "missing.pem"),
        (Tls("", certificate, key, "wrong"), certificate),
        (Tls("", certificate, key), certificate),
        (Tls("", certificate), certificate),
    ):
        with pytest.raises(errors.RegistryUnavailable, match=named) as caught:
            RegistryClient(server.url, tls=wrong)
        assert "\n" not in str(caught.value)


def test_responses_of_the_wrong_type_raise_service_error(serve: Any) -> None:
    calls: list[tuple[Callable[[RegistryClient], Any], Any]] = [
        (lambda client: client.subjects(), {}),
        (lambda client: client.contexts(), "null"),
        (lambda client: client.versions("s"), 3),
        (lambda client: client.schema_by_id(1), {}),
        (lambda client: client.schema_by_id(1), []),
        (lambda client: client.schema_by_id(1), {"schema": "x", "references": [{}]}),
        (lambda client: client.schema_by_id(1), {"schema": "x", "metadata": {"properties": 3}}),
        (lambda client: client.register("s", STRING), {"version": 1}),
        (lambda client: client.version("s", 1), {"schema": "x", "id": "many"}),
        (lambda client: client.usages(1), ["s"]),
        (lambda client: client.compatibility(), {}),
        (lambda client: client.mode("s"), {"mode": 3}),
        (lambda client: client.check_compatibility("s", STRING), {"is_compatible": "yes"}),
        (lambda client: client.delete_version("s", 1), []),
    ]
    with all_cases() as case:
        for number, (call, response) in enumerate(calls):
            with case((number, response)):
                server = serve([(200, response)])
                with pytest.raises(errors.ServiceError) as refused:
                    call(RegistryClient(server.url))
                assert (refused.value.status, refused.value.error_code) == (200, 0)


def test_slow_response_times_out(serve: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def drip() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                with contextlib.suppress(OSError):
                    for _ in range(100_000):
                        connection.sendall(b" ")
                        time.sleep(0.01)

        dripping = pool.submit(drip)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        asking = Transport(parse_servers(url), timeout_s=0.05)
        with pytest.raises(errors.RegistryUnavailable) as unavailable:
            asking.send(ApiCall.of("DELETE", "/subjects/s"))
        assert is_caused_by(unavailable.value, TimeoutError)
        dripping.result()


def test_deletion_clears_the_cache_of_context_clients(serve: Any) -> None:
    server = serve(lambda requests: (200, [1]) if requests.line.startswith("DELETE") else (200, RESPONSE))
    client = RegistryClient(server.url)
    context = client.in_context("eu")
    context.schema_by_id(3)
    context.schema_by_id(3)
    client.schema_by_id(3)
    client.delete_subject("s")
    context.schema_by_id(3)
    assert server.lines == [
        "GET /contexts/.eu/schemas/ids/3",
        "GET /schemas/ids/3",
        "DELETE /subjects/s",
        "GET /contexts/.eu/schemas/ids/3",
    ]


@pytest.mark.parametrize(
    ("subject", "path"),
    [("..", "%2E%2E"), (".", "%2E"), ("a/b c", "a%2Fb%20c"), ("ä?#%", "%C3%A4%3F%23%25"), (":.eu:x", "%3A.eu%3Ax")],
)
def test_subjects_are_percent_encoded_in_paths(serve: Any, subject: str, path: str) -> None:
    server = serve([(200, [])])
    RegistryClient(server.url + "/base/").versions(subject)
    assert server.lines == [f"GET /base/subjects/{path}/versions"]


def test_connections_are_reused_but_not_after_a_fork(serve: Any) -> None:
    server = serve(lambda _: (200, []))
    client = RegistryClient(server.url)
    connections = client._transport._connections[client._transport.servers[0]]
    client.subjects()
    (connection,) = connections._idle
    client.subjects()
    assert connections._idle == [connection]
    connections._process_id -= 1  # as after a fork
    client.subjects()
    assert connections._idle != [connection]
    connection.close()


HEADS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 404 ?\r\nContent-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 429 ?\r\nRetry-After: Thu, 32 Foo 99999 00:00:00\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/9.9 999 \r\n\r\n",
        b"",
    ]
)
JSON_FRAGMENTS = st.sampled_from(
    [b"[]", b"{}", b"2\r\n[]\r\n0\r\n\r\n", b'{"error_code":40401}', b'{"error_code":1e999,"message":{}}', b'"\xff"']
)


@given(HEADS, JSON_FRAGMENTS | st.binary(max_size=40))
def test_any_bytes_give_a_result_or_a_registry_error(head: bytes, rest: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def respond() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as connection:
                        if not connection.recv(65536):
                            return
                        connection.sendall(head + rest)

        responder = pool.submit(respond)
        client = RegistryClient(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with contextlib.suppress(errors.RegistryError):
            assert isinstance(client.subjects(), list)
        socket.create_connection(listening.getsockname()).close()
        responder.result()
