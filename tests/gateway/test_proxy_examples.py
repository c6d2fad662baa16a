"""The configurations in examples/gateway fit each other and the gateway."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from headrace.gateway.peers import Peers
from headrace.gateway.server import IDLE_S, proxy_networks
from headrace.settings import load_settings
from support.checkout import ROOT

EXAMPLES = ROOT / "examples" / "gateway"


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg"])
def test_proxies_have_the_names_and_addresses_of_the_gateways(name: str) -> None:
    own = load_settings(config=EXAMPLES / "headrace.toml").gateway
    Peers(own)
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    servers = dict(re.findall(r"(gateway\d)\S* +(10\.0\.0\.\d+):8082", text))
    assert {urlsplit(url).hostname: url for url in own.peers}.keys() == {f"{one}.example.com" for one in servers}
    assert all(f"{one}.example.com" in text for one in servers)
    assert str(own.listen) == f"{servers['gateway1']}:8082"
    assert set(servers.values()) < set(own.proxies)
    assert len(proxy_networks(own.proxies)) == 2 * len(own.proxies)


def test_nginx_closes_idle_connections_before_the_gateway() -> None:
    found = re.search(r"keepalive_timeout (\d+)s;", (EXAMPLES / "nginx.conf").read_text(encoding="utf-8"))
    assert found is not None and int(found[1]) < IDLE_S
