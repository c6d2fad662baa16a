"""Errors of the console.

ConsoleError
└─ ConsoleUnusable   the settings do not permit to start it, or its database cannot be used
"""

from __future__ import annotations


class ConsoleError(Exception):
    """Root of the errors of the console."""


class ConsoleUnusable(ConsoleError):
    """The console cannot start. The message names the setting to change."""
