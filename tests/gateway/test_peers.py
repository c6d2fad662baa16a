"""The list of gateways and the order in which they may have an instance."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.gateway.peers import Peers
from headrace.settings import GatewaySettings, SettingsError

URLS = ("http://a:8082", "http://b:8082", "https://c")


def peers(own: str, *urls: str) -> Peers:
    return Peers(GatewaySettings(url=own, peers=urls))


def test_all_gateways_have_the_same_order_whatever_the_order_of_the_setting() -> None:
    orders = [peers(own, *urls).order("g", "i") for own, urls in ((URLS[0], URLS), (f"{URLS[1]}/", URLS[::-1]))]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(URLS)


def test_missing_gateway_changes_only_the_order_of_its_own_instances() -> None:
    all_, fewer = peers(URLS[0], *URLS), peers(URLS[0], *URLS[:2])
    firsts = Counter(all_.order("g", str(number))[0] for number in range(300))
    assert min(firsts[url] for url in URLS) > 60
    for number in range(300):
        assert [url for url in all_.order("g", str(number)) if url != URLS[2]] == fewer.order("g", str(number))


def test_every_gateway_is_first_without_peers_and_one_of_them_with() -> None:
    assert peers("").is_first("g", "i")
    assert [peers(own, *URLS).is_first("g", "i") for own in URLS].count(True) == 1


@pytest.mark.parametrize(
    ("own", "urls"),
    [
        ("", URLS),
        ("http://d:8082", URLS),
        ("gateway1:8082", ("gateway1:8082",)),
        ("ftp://a", ("ftp://a",)),
        ("http://a", ("http://a", "http://user:password@b")),
        ("http://a", ("http://a", "http://b/path")),
        ("http://a", ("http://a", "http://b?x")),
        ("http://a", ("http://a", "http://:80")),
    ],
)
def test_invalid_list_is_refused(own: str, urls: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError):
        peers(own, *urls)
