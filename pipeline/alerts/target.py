"""Targets of notifications: webhooks in Alertmanager's form, an Alertmanager, and services that Apprise supports.

URLs of targets contain tokens. Names of targets, which appear in the delivery log, in reports and in errors, have only
scheme and host of the URL, and a hash to distinguish several.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.pipeline.alerts.errors import InvalidAlertSettings, NotificationFailed
from headrace.pipeline.alerts.message import (
    Body,
    Notice,
    alertmanager_body,
    body_text,
    title_text,
    webhook_body,
)
from headrace.settings import Settings
from headrace.settings.masking import MASK
from headrace.version import VERSION

TIMEOUT_S: Final = 10.0
"""Time limit of each step of a request, such as the connection or a part of the response."""
SEND_S_MAX: Final = 20.0
"""Time limit of a whole request: a target that responds byte by byte must not delay the alerts of others."""
ALERTMANAGER_PATH: Final = "/api/v2/alerts"
TRIED_AGAIN: Final = frozenset({408, 425, 429})
"""Responses below 500 that concern the target and not these alerts."""
ERROR_CHARS_MAX: Final = 300
LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """A target that the settings name.

    Attributes:
        name: without credentials.
        repeat_ms: after this time, an alert that still fires is delivered again; None for never.
        is_refreshed: whether all firing alerts are sent at each evaluation, because the target forgets them otherwise.
        send: sends events of one kind of findings at a time; raises NotificationFailed.
    """

    name: str
    repeat_ms: int | None
    is_refreshed: bool
    send: Callable[[Sequence[Notice], int], None]


def targets_of(settings: Settings) -> tuple[AlertTarget, ...]:
    """Returns the targets of the settings.

    Raises:
        InvalidAlertSettings: a URL is not one of HTTP, or a label has an invalid name.
    """
    alerts, repeat_ms = settings.alerts, settings.alerts.repeat_interval.ms
    labels = alerts.labels
    for label in labels:
        if not LABEL.fullmatch(label):
            raise InvalidAlertSettings(
                f"alerts.labels: expected names of letters, digits and underscores, found {label!r}"
            )
    console_url = settings.console.public_url
    found = [_webhook(url, labels, repeat_ms, console_url) for url in alerts.webhook_urls]
    found += [_alertmanager(alerts.alertmanager_url, labels, console_url)] if alerts.alertmanager_url else []
    found += [_apprise(url, repeat_ms) for url in alerts.notify]
    return tuple({target.name: replace(target, send=limited(target)) for target in found}.values())


_sending: dict[str, threading.Thread] = {}
"""The newest request to each target, by name; it may still run after its time limit."""


def limited(target: AlertTarget) -> Callable[[Sequence[Notice], int], None]:
    """Returns the function `send` of a target with the time limit `SEND_S_MAX`. While a request that exceeded it still
    runs, further ones fail at once, so that a target has at most one such request."""

    def send(notices: Sequence[Notice], now_ms: int) -> None:
        previous = _sending.get(target.name)
        if previous is not None and previous.is_alive():
            raise NotificationFailed("the previous request has not ended", is_target_down=True)
        errors: list[Exception | None] = []

        def run() -> None:
            try:
                target.send(notices, now_ms)
                errors.append(None)
            except Exception as error:  # raised below
                errors.append(error)

        _sending[target.name] = thread = threading.Thread(target=run, name=target.name, daemon=True)
        thread.start()
        thread.join(SEND_S_MAX)
        if not errors:
            raise NotificationFailed(f"no complete response within {SEND_S_MAX:g} s", is_target_down=True)
        if errors[0] is not None:
            raise errors[0]

    return send


def target_name(kind: str, url: str) -> str:
    """Returns the name of a target: kind, scheme, host and 8 hex digits of a hash of the URL. Hosts of Apprise's own
    schemes may be tokens, so they are masked too."""
    scheme, host = url.partition("://")[0], MASK
    if scheme in ("http", "https"):
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return f"{kind} {scheme}://{host} {hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _webhook(url: str, labels: Mapping[str, str], repeat_ms: int, console_url: str) -> AlertTarget:
    _check_url("alerts.webhook_urls", url)

    def send(notices: Sequence[Notice], now_ms: int) -> None:
        _post(url, webhook_body(notices, labels, console_url))

    return AlertTarget(target_name("webhook", url), repeat_ms, False, send)


def _alertmanager(url: str, labels: Mapping[str, str], console_url: str) -> AlertTarget:
    _check_url("alerts.alertmanager_url", url)
    api_url = url.rstrip("/") + ("" if url.rstrip("/").endswith(ALERTMANAGER_PATH) else ALERTMANAGER_PATH)

    def send(notices: Sequence[Notice], now_ms: int) -> None:
        _post(api_url, alertmanager_body(notices, labels, now_ms, console_url))

    return AlertTarget(target_name("alertmanager", url), None, True, send)


def _apprise(url: str, repeat_ms: int) -> AlertTarget:
    if "://" not in url:
        raise InvalidAlertSettings("alerts.notify: expected URLs of Apprise such as slack://…, found one without ://")

    def send(notices: Sequence[Notice], now_ms: int) -> None:
        _notify(url, title_text(notices), body_text(notices))

    return AlertTarget(target_name("notify", url), repeat_ms, False, send)


def _check_url(key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is above 65535, or a bracket is no part of an IPv6 address
        is_valid = False
    if not is_valid or not url.isascii() or re.search(r"[\x00-\x20]", url):
        raise InvalidAlertSettings(f"{key}: expected URLs http://… or https://…, found another value")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: urllib would follow one with a GET request, without the body."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, body: Body) -> None:
    """Posts a JSON document. User and password in the URL are sent as basic authentication.

    Raises:
        NotificationFailed: the target does not respond, or not with 2xx.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    headers = {"Content-Type": "application/json", "User-Agent": f"headrace/{VERSION}"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    plain_url = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
    request = urllib.request.Request(plain_url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as response:
            response.read(1)
    except urllib.error.HTTPError as error:
        with error:
            is_down = error.code >= 500 or error.code in TRIED_AGAIN
            raise NotificationFailed(f"HTTP {error.code}{_detail(error)}", is_target_down=is_down) from None
    except (OSError, http.client.HTTPException) as error:
        raise NotificationFailed(_network_reason(error), is_target_down=True) from None


def _detail(error: urllib.error.HTTPError) -> str:
    """Returns the start of an error's body on one line, or ""."""
    try:
        text = " ".join(error.read(ERROR_CHARS_MAX).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException):
        return ""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return f": {printable}" if printable else ""


def _network_reason(error: Exception) -> str:
    """Returns the reason of a failed request, without the URL."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no response within {TIMEOUT_S:g} s"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__ if isinstance(cause, Exception) else str(cause)


def _notify(url: str, title: str, body: str) -> None:
    try:
        import apprise
    except ModuleNotFoundError:
        raise NotificationFailed(
            "alerts.notify needs the library apprise, which the extra 'notify' installs", is_target_down=True
        ) from None
    service = apprise.Apprise()
    if not service.add(url):
        raise NotificationFailed("Apprise does not know this URL; see its list of services", is_target_down=True)
    if not service.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT):
        raise NotificationFailed("Apprise could not deliver it", is_target_down=True)
