"""Errors of the console.

ConsoleError
├─ RemoteCommitLog    the commit log is on HDFS or S3, where only a JVM reads it
├─ OidcSignInFailed   a sign-in through an OpenID provider failed
└─ ConsoleUnusable   the settings do not permit to start it, or its database cannot be used
"""

from __future__ import annotations


class ConsoleError(Exception):
    """Root of the errors of the console."""


class RemoteCommitLog(ConsoleError):
    """The commit log is not in a local directory, and reading it would start a JVM in this server."""


class ConsoleUnusable(ConsoleError):
    """The console cannot start. The message names the setting to change."""


class OidcSignInFailed(ConsoleError):
    """A sign-in through an OpenID provider failed. The message is a sentence for the browser; `reason` is for the log.
    `is_unreachable` means that the provider did not respond."""

    def __init__(self, message: str, reason: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_unreachable = is_unreachable
