"""Errors of alerts.

AlertError
├── AlertStoreUnavailable  the database of the alerts cannot be used
├── InvalidAlertSettings   a key of `[alerts]` has an invalid value
└── NotificationFailed         a target did not accept a notification
"""

from __future__ import annotations


class AlertError(Exception):
    """An alert cannot be evaluated, stored or delivered. The message is one line for the user."""


class AlertStoreUnavailable(AlertError):
    """The database of the alerts, which is that of the audit, cannot be used. The message has no password."""


class InvalidAlertSettings(AlertError):
    """A key of `[alerts]` has an invalid value."""


class NotificationFailed(AlertError):
    """A target did not accept a notification.

    Attributes:
        is_target_down: whether further requests to the target would fail too. Otherwise the target rejected these
            alerts.
    """

    def __init__(self, reason: str, *, is_target_down: bool) -> None:
        super().__init__(reason)
        self.is_target_down = is_target_down
