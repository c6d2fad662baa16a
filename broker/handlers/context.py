"""What a handler is given beside the request."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.node import BrokerNode


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`client_host` is the peer's address, as DescribeGroups shows it."""

    node: BrokerNode
    version: int
    client_id: str
    client_host: str
