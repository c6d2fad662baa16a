"""The context of a request: the parameters of a handler besides the decoded request."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, NamedTuple

from headrace.broker.access.login import ANONYMOUS, Login
from headrace.broker.access.permissions import BrokerPermission, BrokerPermissions, ResourceType
from headrace.broker.errors import RequestRefused
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode


class RequestContext(NamedTuple):
    """The broker node, the API version and the client of a request, for its handler. `client_host` is the client's IP
    address; DescribeGroups shows it after a slash."""

    node: BrokerNode
    version: int
    client_id: str
    client_host: str
    login: Login = ANONYMOUS

    @property
    def permissions(self) -> BrokerPermissions:
        return self.login.permissions

    def check_topic(self, name: str, permission: BrokerPermission | None = None) -> None:
        """Checks that the client has `permission` on the topic of this name; None stands for any permission.

        Raises:
            RequestRefused: the client lacks the permission.
        """
        self.login.permissions.check(ResourceType.TOPIC, name, permission)

    def check_group(self, group_id: str, permission: BrokerPermission | None = None) -> None:
        """Checks that the client has `permission` on a group; None stands for any permission.

        Raises:
            RequestRefused: the client lacks the permission.
        """
        self.login.permissions.check(ResourceType.GROUP, group_id, permission)

    def check_transaction(self, transactional_id: str, permission: BrokerPermission | None = None) -> None:
        """Checks that the client has `permission` on a transactional id; None stands for any permission.

        Raises:
            RequestRefused: the client lacks the permission.
        """
        self.login.permissions.check(ResourceType.TRANSACTION, transactional_id, permission)

    def topic_error(self, name: str, permission: BrokerPermission | None = None) -> ErrorCode:
        """Returns NONE if the client has `permission` on the topic of this name, else the error code for the response.
        The default, None, stands for any permission."""
        try:
            self.check_topic(name, permission)
        except RequestRefused as refused:
            return refused.code
        return ErrorCode.NONE

    def group_error(self, group_id: str, permission: BrokerPermission | None = None) -> ErrorCode:
        """Returns NONE if the client has `permission` on a group, else the error code for the response. The default,
        None, stands for any permission."""
        try:
            self.check_group(group_id, permission)
        except RequestRefused as refused:
            return refused.code
        return ErrorCode.NONE


class ResultWithFrame:
    """A handler's result that is computed later, by `work`, and needs the bytes of the request until then. Meanwhile
    the connection handles no other request and reads no bytes, so that the frame is not overwritten. The work is
    completed even if the connection is lost, as if it had been done at once."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


def fencing_error(code: ErrorCode, supports_producer_fenced: bool) -> ErrorCode:
    """Returns `code`, or INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED if the version of the client's request does
    not have that error (KIP-588)."""
    return (
        ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not supports_producer_fenced else code
    )
