"""Permissions of viewers, from the file `registry.users`.

| permission | shows or permits |
|---|---|
| `read` on any subject | names, counts and verdicts; schemas of the matching subjects |
| `payload` on topics | the content of messages of the matching topics |
| `admin` on a topic's subject | actions on the topic |

`read` and `admin` are the registry's permissions and do not include `payload`. Without `registry.users` every viewer
has all permissions, as in the registry and the broker; if such a console listens on a network, it only shows names,
counts and verdicts.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.permissions import (
    ALL_PERMISSIONS,
    WILDCARD,
    Permission,
    Permissions,
    SubjectPattern,
    Target,
)
from headrace.registry.access.required_permissions import TOO_BUSY
from headrace.registry.access.users import Principal
from headrace.settings import LoaderSettings

if TYPE_CHECKING:
    from headrace.console.oidc import OidcLogin
    from headrace.console.sessions import ConsoleSession

WRONG: Final = "The user name or the password is wrong."
BUSY: Final = "Too many passwords are being checked. Try again in a second."

_ALL: Final = Principal("", ALL_PERMISSIONS, payload=(SubjectPattern.parse(WILDCARD),))
_COUNTS_ONLY: Final = Principal("", Permissions(((Permission.READ, SubjectPattern.parse(WILDCARD)),)))


class SignInDenied(Exception):
    """The sign-in failed. The message is a sentence that does not reveal which users exist."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The sender of a request to the console."""

    principal: Principal
    loader: LoaderSettings

    @property
    def name(self) -> str:
        """The user's name; "" for an anonymous viewer."""
        return self.principal.name

    @property
    def may_read(self) -> bool:
        """Whether the viewer may see names, counts and verdicts."""
        return self.principal.permissions.highest_anywhere is not None

    def may_read_schema(self, subject: str) -> bool:
        return self.principal.permissions.allow(Permission.READ, Target.of_subject(subject))

    def may_read_payload(self, topic: str) -> bool:
        """Whether the viewer may see the content of the topic's messages."""
        return self.principal.may_read_payload(topic)

    def may_administer(self, topic: str) -> bool:
        """Whether the viewer may request actions on the topic."""
        subject = self.loader.subject_of(topic)
        return self.principal.permissions.allow(Permission.ADMIN, Target.of_subject(subject))

    @property
    def may_administer_everything(self) -> bool:
        """Whether the viewer may request actions that are not about one topic."""
        return self.principal.permissions.highest_everywhere is Permission.ADMIN


@dataclass(frozen=True, slots=True)
class ConsoleAccess:
    """The users of the console. `users` is None without `registry.users`; `is_local` states whether the console listens
    on loopback only. `oidc` is the sign-in through an OpenID provider, if the settings name one."""

    users: RegistryUsersFile | None
    is_local: bool
    loader: LoaderSettings
    oidc: OidcLogin | None = None

    def anonymous(self) -> Viewer:
        if self.users is not None:
            return Viewer(self.users.anonymous, self.loader)
        return Viewer(_ALL if self.is_local else _COUNTS_ONLY, self.loader)

    def log_in(self, user: str, password: str, address: str) -> Viewer:
        """Checks a password, which may take seconds.

        Args:
            address: the client's address, to limit password guessing.

        Raises:
            SignInDenied: the password is wrong or cannot be checked now.
        """
        encoded = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode()
        return self.authenticate(f"Basic {encoded}", address)

    def authenticate(self, authorization: str, address: str) -> Viewer:
        """Checks an Authorization header of a program, which has no session. Like `log_in`."""
        if self.users is None:
            return self.anonymous()
        result = self.users.authenticate(authorization, address)
        if isinstance(result, Principal):
            return Viewer(result, self.loader)
        raise SignInDenied(BUSY if result is TOO_BUSY else WRONG)

    def password_stamp(self, user: str) -> str:
        return "" if self.users is None else self.users.password_stamp(user)

    def of_session(self, session: ConsoleSession) -> Viewer | None:
        """Returns the viewer of a session; None if the user no longer exists or has another password than at its
        sign-in, or if the user signed in through an OpenID provider that the settings no longer name."""
        user = session.user
        if self.users is None:
            return None if user else self.anonymous()
        if session.roles is not None:
            return self.of_roles(user, session.roles) if self.oidc is not None else None
        principal = self.users.principal_of_user(user)
        if principal is None or session.password_stamp != self.users.password_stamp(user):
            return None
        return Viewer(principal, self.loader)

    def of_roles(self, user: str, roles: Sequence[str]) -> Viewer:
        """Returns the viewer for a user of the OpenID provider with these roles."""
        assert self.users is not None, "check_settings requires registry.users"
        return Viewer(self.users.principal_with_roles(user, roles), self.loader)
