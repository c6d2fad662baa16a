"""Unit tests of the registry client: server lists, pauses, errors, the cache and proxies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry import errors
from headrace.registry.api.problems import ERROR_CODES
from headrace.registry.client.access import SERVERS_MAX, BasicAuth, BearerAuth, parse_servers
from headrace.registry.client.cache import Cache
from headrace.registry.client.client import ENTRY_WEIGHT, _context_prefix, _weight
from headrace.registry.client.connections import HttpResponse
from headrace.registry.client.proxies import proxy_for
from headrace.registry.client.responses import ERRORS_BY_CODE, RegisteredSchema, response_value
from headrace.registry.client.transport import PAUSE_FIRST_S, PAUSE_MAX_S, ApiCall, is_transient, pause_s
from support.cases import all_cases


def test_parse_servers_reads_paths_credentials_and_ports() -> None:
    first, second, third = parse_servers(
        " https://a:8443/registry/ ,http://shop:se%2Cs%40me@b.example,http://[::1]:8081,", BearerAuth("t")
    )
    assert (first.url, first.host, first.port, first.is_secure, first.base_path) == (
        "https://a:8443/registry",
        "a",
        8443,
        True,
        "/registry",
    )
    assert (second.url, second.port, second.auth) == ("http://b.example", None, BasicAuth("shop", "se,s@me"))
    assert (third.host, third.is_loopback, third.auth) == ("::1", True, BearerAuth("t"))


def test_parse_servers_removes_duplicates_and_limits_the_number() -> None:
    assert len(parse_servers("http://a:1,http://a:1/")) == 1
    with pytest.raises(errors.RegistryUnavailable, match=f"{SERVERS_MAX}"):
        parse_servers([f"http://a:{port}" for port in range(1, 100)])


@given(st.integers(1, 100), st.none() | st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_pauses_are_bounded(failures: int, retry_after_s: float | None, random_fraction: float) -> None:
    pause = pause_s(failures, retry_after_s, random_fraction)
    assert 0 <= pause <= PAUSE_MAX_S
    assert pause >= min(PAUSE_MAX_S, retry_after_s or 0)
    assert pause_s(failures, None, random_fraction) <= PAUSE_FIRST_S * 2 ** (failures - 1)


def test_only_deletions_are_not_repeatable() -> None:
    assert [method for method in ("GET", "POST", "PUT", "DELETE") if ApiCall.of(method, "/x").is_repeatable] == [
        "GET",
        "POST",
        "PUT",
    ]
    assert ApiCall.of("DELETE", "/x", is_repeatable=True).is_repeatable
    assert [status for status in range(100, 600) if is_transient(status)] == [
        408,
        429,
        500,
        *(status for status in range(502, 600) if status != 505),
    ]


def test_error_response_raises_its_class_with_the_server_s_message() -> None:
    with all_cases() as case:
        for kind, (_, code) in ERROR_CODES.items():
            with case(kind.__name__):
                assert ERRORS_BY_CODE[code] is kind
                response = HttpResponse(400, b'{"error_code":%d,"message":"of the server"}' % code)
                with pytest.raises(kind) as caught:
                    response_value(response, subject="s", version=2, schema_id=3)
                error = caught.value
                assert (str(error), error.subject, error.version, error.schema_id) == ("of the server", "s", 2, 3)


def test_response_without_content_is_none() -> None:
    assert response_value(HttpResponse(204, b"")) is None


def test_redirect_error_never_shows_credentials() -> None:
    with all_cases() as case:
        for location in ["", "/elsewhere", "//host", "http://[", "http://u:sesame@h\x00/x", "mailto:sesame@x"]:
            with case(location):
                with pytest.raises(errors.ServiceError, match="302") as caught:
                    response_value(HttpResponse(302, b"", location=location))
                assert "sesame" not in str(caught.value)


def make_cache(count_max: int, weight_max: int) -> Cache:
    return Cache(count_max, weight_max, lambda key, value: len(value))


def test_cache_evicts_the_least_recently_used_value() -> None:
    cache = make_cache(2, 100)
    for key in "aba" + "c":
        cache.get_or_make(key, lambda: "x")
    made: list[str] = []
    for key in "acb":
        cache.get_or_make(key, lambda key=key: made.append(key) or "x")  # type: ignore[misc]
    assert made == ["b"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=60))
def test_cache_stays_within_its_bounds(steps: list[tuple[int, int]]) -> None:
    cache = make_cache(4, 30)
    for key, size in steps:
        assert isinstance(cache.get_or_make(key, lambda size=size: "x" * size), str)  # type: ignore[misc]
        values = [value for value, _ in cache._values.values()]
        assert len(cache) <= 4
        assert sum(map(len, values)) == cache._weight <= 30


def test_cache_entry_weighs_its_key_and_its_schema() -> None:
    key = ("id", 7, "subject")
    assert _weight(key, RegisteredSchema(7, "x" * 1000)) == ENTRY_WEIGHT + len("id") + len("subject") + 1000


def test_cache_drops_values_requested_before_clear() -> None:
    cache = make_cache(2, 100)

    def make() -> Any:
        cache.clear()
        return "old"

    assert cache.get_or_make("a", make) == "old"
    assert cache.get_or_make("a", lambda: "new") == "new"


def test_context_prefix_of_subjects() -> None:
    assert [_context_prefix(text) for text in (":.eu:orders", ":.:orders", "orders", ":.eu", ":x:y", "")] == [
        ":.eu:",
        ":.:",
        "",
        "",
        "",
        "",
    ]


HTTP = {"HTTP_PROXY": "http://proxy:3128", "HTTPS_PROXY": "secure-proxy:8080"}


def test_proxy_follows_the_environment_variables() -> None:
    with all_cases() as case:
        for url, environment, proxy in [
            ("http://registry:8081", {}, ""),
            ("http://registry:8081", HTTP, "proxy:3128"),
            ("https://registry", HTTP, "secure-proxy:8080"),
            ("https://registry", {"HTTP_PROXY": "proxy:3128"}, ""),
            ("http://registry", {"http_proxy": "other", **HTTP}, "other:80"),
            ("http://registry", {"http_proxy": "", **HTTP}, ""),
            ("http://registry", {**HTTP, "REQUEST_METHOD": "GET"}, ""),
            ("http://registry", {"http_proxy": "p:1", "REQUEST_METHOD": "GET"}, "p:1"),
            ("http://localhost:8081", HTTP, ""),
            ("http://a.localhost", HTTP, ""),
            ("http://127.0.0.9", HTTP, ""),
            ("http://[::1]:8081", HTTP, ""),
            ("http://registry", {**HTTP, "NO_PROXY": "*"}, ""),
            ("http://registry.eu.example.com", {**HTTP, "NO_PROXY": "a, Example.com"}, ""),
            ("http://registry.eu.example.com", {**HTTP, "no_proxy": ".eu.example.com"}, ""),
            ("http://registry.eu.example.com", {**HTTP, "no_proxy": "*.example.com."}, ""),
            ("http://registryexample.com", {**HTTP, "NO_PROXY": "example.com"}, "proxy:3128"),
            ("http://registry", {**HTTP, "NO_PROXY": ",,"}, "proxy:3128"),
            ("http://registry:8081", {**HTTP, "NO_PROXY": "registry:8081"}, ""),
            ("http://registry:8082", {**HTTP, "NO_PROXY": "registry:8081"}, "proxy:3128"),
            ("https://registry", {**HTTP, "NO_PROXY": "registry:443"}, ""),
            ("http://10.1.2.3", {**HTTP, "NO_PROXY": "10.0.0.0/8"}, ""),
            ("http://10.1.2.3:8081", {**HTTP, "NO_PROXY": "10.1.2.3:8081"}, ""),
            ("http://11.1.2.3", {**HTTP, "NO_PROXY": "10.0.0.0/8"}, "proxy:3128"),
            ("http://11.1.2.3", {**HTTP, "NO_PROXY": "2.3"}, "proxy:3128"),
            ("http://[fd00::1]", {**HTTP, "NO_PROXY": "fd00::/8"}, ""),
            ("http://[fd00::1]:81", {**HTTP, "NO_PROXY": "[fd00::1]:81"}, ""),
        ]:
            with case((url, environment, proxy)):
                (server,) = parse_servers(url)
                assert str(proxy_for(server, environment) or "") == proxy


def test_unusable_proxy_raises_registry_unavailable() -> None:
    with all_cases() as case:
        for text in ["socks5://proxy:1080", "https://proxy", "http://", "http://proxy:x", "http://a%0d:b@p"]:
            with case(text):
                (server,) = parse_servers("http://registry")
                with pytest.raises(errors.RegistryUnavailable, match="HTTP_PROXY"):
                    proxy_for(server, {"HTTP_PROXY": text})


def test_repr_of_proxy_hides_the_password() -> None:
    proxy = proxy_for(parse_servers("http://registry")[0], {"HTTP_PROXY": "http://me:op%40en@proxy:1"})
    assert proxy is not None
    assert proxy.headers == {"Proxy-Authorization": "Basic bWU6b3BAZW4="}
    assert "bWU6" not in f"{proxy!r} {proxy}"
