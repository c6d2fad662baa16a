"""What a handler is given beside the request."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.access.login import ANYBODY, Login
from headrace.broker.access.rights import Kind, Right, Rights
from headrace.broker.errors import RequestRefused
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode


class RequestContext(NamedTuple):
    """`client_host` is the peer's address, as DescribeGroups shows it."""

    node: BrokerNode
    version: int
    client_id: str
    client_host: str
    login: Login = ANYBODY

    @property
    def rights(self) -> Rights:
        return self.login.rights

    def check_topic(self, name: str, right: Right | None = None) -> None:
        """
        Raises:
            RequestRefused: the client has not this right on the topic, or without one not any.
        """
        self.login.rights.check(Kind.TOPIC, name, right)

    def check_group(self, group_id: str, right: Right | None = None) -> None:
        """
        Raises:
            RequestRefused: the client has not this right on the group, or without one not any.
        """
        self.login.rights.check(Kind.GROUP, group_id, right)

    def check_transaction(self, transactional_id: str, right: Right | None = None) -> None:
        """
        Raises:
            RequestRefused: the client has not this right on the transactional id, or without one not any.
        """
        self.login.rights.check(Kind.TRANSACTION, transactional_id, right)

    def topic_error(self, name: str, right: Right | None = None) -> ErrorCode:
        """`check_topic` for answers that have error codes alone; NONE where the right is there."""
        try:
            self.check_topic(name, right)
        except RequestRefused as refused:
            return refused.code
        return ErrorCode.NONE

    def group_error(self, group_id: str, right: Right | None = None) -> ErrorCode:
        """`check_group` for answers that have one error code; NONE where the right is there."""
        try:
            self.check_group(group_id, right)
        except RequestRefused as refused:
            return refused.code
        return ErrorCode.NONE


def fenced_code(code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """PRODUCER_FENCED for versions that know it; the older ones have INVALID_PRODUCER_EPOCH for it (KIP-588)."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not knows_fenced else code
