"""Targets of alerts with a real HTTP receiver, and the texts that must not show their tokens."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator

import pytest

from headrace.pipeline.alerts import target
from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.delivery import AlertEvent
from headrace.pipeline.alerts.errors import InvalidAlertSettings, NotificationFailed
from headrace.pipeline.alerts.message import ENDS_AFTER_MS, LINES_MAX, Notice, body_text, title_text
from headrace.pipeline.alerts.rule import AlertSeverity
from headrace.pipeline.alerts.target import target_name, targets_of
from headrace.pipeline.text_table import printable
from headrace.settings import AlertsSettings, ConsoleSettings, Settings, SettingsError, load_settings
from support.free_ports import free_port
from support.webhook_receiver import WebhookReceiver, webhook_receiver

NOW_MS = 1_769_843_604_120
ALERT = Alert(
    id="abcdef012345",
    fingerprint="0123456789abcdef",
    kind="audit-missing",
    subject='<b>"ord\u202eers"</b>',
    source="audit",
    problem="missing in 1 window: 3 messages",
    show="headrace audit report --topic orders",
    repair="send them again",
    severity=AlertSeverity.PAGE,
    state=AlertState.FIRING,
    opened_ms=NOW_MS - 60_000,
    since_ms=NOW_MS - 60_000,
    seen_ms=NOW_MS,
    fired_ms=NOW_MS,
    firings=1,
)
FIRING, RESOLVED = Notice(ALERT, AlertEvent.FIRING, NOW_MS), Notice(ALERT, AlertEvent.RESOLVED, NOW_MS)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


def send(settings: AlertsSettings, *notices: Notice) -> None:
    for one in targets_of(Settings(alerts=settings)):
        one.send(notices, NOW_MS)


def test_webhook_gets_the_form_of_alertmanager(receiver: WebhookReceiver) -> None:
    other = dataclasses.replace(ALERT, subject="clicks", fingerprint="f" * 16)
    settings = AlertsSettings(webhook_urls=(f"{receiver.url}/hook?token=t",), labels={"env": "prod"})
    send(settings, FIRING, Notice(other, AlertEvent.RESOLVED, NOW_MS))
    ((path, headers, body),) = receiver.requests
    assert (path, headers["Content-Type"]) == ("/hook?token=t", "application/json")
    common = {"env": "prod", "alertname": "audit-missing", "severity": "page", "service": "headrace"}
    assert (body["version"], body["status"], body["receiver"]) == ("4", "firing", "headrace")
    assert (body["groupLabels"], body["commonLabels"]) == ({"alertname": "audit-missing"}, common)
    assert body["commonAnnotations"]["repair"] == "send them again"
    first, second = body["alerts"]
    assert first["labels"] == {**common, "subject": ALERT.subject}
    assert first["annotations"]["summary"] == f"{ALERT.subject} with missing messages by the audit"
    assert (first["startsAt"], first["endsAt"]) == ("2026-01-31T07:12:24.120Z", "0001-01-01T00:00:00Z")
    assert (second["status"], second["endsAt"]) == ("resolved", "2026-01-31T07:13:24.120Z")
    assert (first["fingerprint"], second["fingerprint"]) == ("0123456789abcdef", "f" * 16)


def test_alertmanager_gets_a_list_with_the_times_of_the_alert(receiver: WebhookReceiver) -> None:
    for url in (receiver.url, f"{receiver.url}/prefix/", f"{receiver.url}/api/v2/alerts"):
        send(AlertsSettings(alertmanager_url=url), FIRING, RESOLVED)
    assert [path for path, _, _ in receiver.requests] == [
        "/api/v2/alerts",
        "/prefix/api/v2/alerts",
        "/api/v2/alerts",
    ]
    firing, resolved = receiver.bodies[0]
    assert firing["endsAt"] == "2026-01-31T07:28:24.120Z"
    assert ENDS_AFTER_MS == 15 * 60_000
    assert resolved["endsAt"] == "2026-01-31T07:13:24.120Z"
    assert firing["labels"] == resolved["labels"]


def test_alerts_link_to_the_page_of_the_console(receiver: WebhookReceiver) -> None:
    alerts = AlertsSettings(webhook_urls=(receiver.url,), alertmanager_url=receiver.url)
    console = ConsoleSettings(public_url="https://ops.example.org/headrace")
    disk = Notice(dataclasses.replace(ALERT, kind="disk-low"), AlertEvent.FIRING, NOW_MS)
    for one in targets_of(Settings(alerts=alerts, console=console)):
        one.send([dataclasses.replace(FIRING, alert=dataclasses.replace(ALERT, subject="a/b")), disk], NOW_MS)
    webhook, alertmanager = receiver.bodies
    assert webhook["externalURL"] == "https://ops.example.org/headrace"
    expected = ["https://ops.example.org/headrace/topics/a%2Fb", f"https://ops.example.org/headrace/alerts#{ALERT.id}"]
    assert [one["generatorURL"] for one in webhook["alerts"]] == expected
    assert [one["generatorURL"] for one in alertmanager] == expected


def test_user_and_password_of_a_url_are_sent_as_basic_authentication(receiver: WebhookReceiver) -> None:
    send(AlertsSettings(webhook_urls=(receiver.url.replace("//", "//us%40er:p%3Aw@"),)), FIRING)
    ((_, headers, _),) = receiver.requests
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"us@er:p:w"
    assert "us%40er" not in headers["Host"]


@pytest.mark.parametrize(
    ("code", "is_down", "reason"),
    [
        (500, True, "HTTP 500: a?b c"),
        (503, True, "HTTP 503: a?b c"),
        (429, True, "HTTP 429: a?b c"),
        (400, False, "HTTP 400: a?b c"),
        (404, False, "HTTP 404: a?b c"),
        (302, False, "HTTP 302: a?b c"),
    ],
)
def test_error_responses(receiver: WebhookReceiver, code: int, is_down: bool, reason: str) -> None:
    receiver.responses = [code]
    with pytest.raises(NotificationFailed) as raised:
        send(AlertsSettings(webhook_urls=(f"{receiver.url}/secret-token",)), FIRING)
    assert (raised.value.is_target_down, str(raised.value)) == (is_down, reason)
    assert len(receiver.requests) == 1  # redirects are not followed


def test_a_receiver_that_hangs_times_out(receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "TIMEOUT_S", 0.2)
    receiver.responses = [0]
    with pytest.raises(NotificationFailed, match="no response within") as raised:
        send(AlertsSettings(webhook_urls=(receiver.url,)), FIRING)
    assert raised.value.is_target_down


def test_a_receiver_that_responds_byte_by_byte_times_out_and_gets_one_request_at_a_time(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "SEND_S_MAX", 0.3)
    receiver.trickles = True
    settings = AlertsSettings(webhook_urls=(receiver.url,))
    for reason in ("no complete response within", "the previous request has not ended"):
        with pytest.raises(NotificationFailed, match=reason) as raised:
            send(settings, FIRING)
        assert raised.value.is_target_down
    assert len(receiver.requests) == 1
    receiver.released.set()


@pytest.mark.parametrize("code", [200, 500])
def test_a_large_response_is_not_read(receiver: WebhookReceiver, code: int) -> None:
    receiver.responses, receiver.body = [code], b"x" * 10_000_000
    settings = AlertsSettings(webhook_urls=(receiver.url,))
    if code == 200:
        send(settings, FIRING)
        return
    with pytest.raises(NotificationFailed) as raised:
        send(settings, FIRING)
    assert len(str(raised.value)) == len("HTTP 500: ") + target.ERROR_CHARS_MAX


def test_a_receiver_that_refuses_connections() -> None:
    with pytest.raises(NotificationFailed, match="Connection refused") as raised:
        send(AlertsSettings(webhook_urls=(f"http://127.0.0.1:{free_port()}/secret-token",)), FIRING)
    assert raised.value.is_target_down
    assert "secret-token" not in str(raised.value)


def test_apprise_gets_title_and_text(receiver: WebhookReceiver) -> None:
    url = receiver.url.replace("http://", "json://")
    send(AlertsSettings(notify=(f"{url}/hook",)), FIRING)
    (body,) = receiver.bodies
    assert body["title"] == f"[FIRING:1] page: {printable(ALERT.subject)} with missing messages by the audit"
    assert not {"\u202e"} & {*body["title"], *body["message"]}
    assert "repair: send them again" in body["message"]
    receiver.responses = [500]
    with pytest.raises(NotificationFailed) as raised:
        send(AlertsSettings(notify=(f"{url}/hook",)), FIRING)
    assert raised.value.is_target_down


def test_an_unknown_scheme_of_apprise_is_an_error() -> None:
    with pytest.raises(NotificationFailed, match="does not know this URL"):
        send(AlertsSettings(notify=("nothing://token",)), FIRING)


def test_text_lists_the_first_alerts_only() -> None:
    notices = [FIRING] * (LINES_MAX + 5) + [RESOLVED]
    assert title_text(notices) == "[FIRING:25] page: audit-missing (with missing messages by the audit)"
    assert body_text(notices).endswith("and 6 more: headrace alerts list")
    assert body_text([RESOLVED]).startswith("resolved at 2026-01-31T07:13:24.120Z")


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        (
            "webhook",
            "https://user:geheim@hooks.example.org:8443/geheim?geheim=1",
            "webhook https://hooks.example.org:8443 ",
        ),
        ("webhook", "http://[::1]/geheim", "webhook http://::1 "),
        ("notify", "slack://geheim/geheim2", "notify slack://*** "),
        ("notify", "geheim://", "notify geheim://*** "),
    ],
)
def test_names_of_targets_show_no_token(kind: str, url: str, expected: str) -> None:
    name = target_name(kind, url)
    assert name.startswith(expected)
    assert len(name) == len(expected) + 8
    assert name != target_name(kind, f"{url}x")


@pytest.mark.parametrize(
    "settings",
    [
        AlertsSettings(webhook_urls=("ftp://geheim",)),
        AlertsSettings(webhook_urls=("geheim",)),
        AlertsSettings(webhook_urls=("http://host:99999/geheim",)),
        AlertsSettings(webhook_urls=("http://host/ geheim",)),
        AlertsSettings(alertmanager_url="http:///geheim"),
        AlertsSettings(notify=("geheim",)),
        AlertsSettings(labels={"a-b": "geheim"}),
    ],
)
def test_invalid_settings_are_rejected_without_their_value(settings: AlertsSettings) -> None:
    with pytest.raises(InvalidAlertSettings) as raised:
        targets_of(Settings(alerts=settings))
    assert "geheim" not in str(raised.value)
    assert "geheim" not in repr(AlertsSettings(webhook_urls=settings.webhook_urls, notify=settings.notify))


def test_settings_mask_urls_of_targets() -> None:
    settings = load_settings(
        environment={
            "HEADRACE__ALERTS__WEBHOOK_URLS": "https://hooks.example.org/geheim,https://b/geheim",
            "HEADRACE__ALERTS__NOTIFY": "slack://geheim/x",
            "HEADRACE__ALERTS__ALERTMANAGER_URL": "http://user:geheim@am:9093",
        }
    )
    assert settings.alerts.masked()["webhook_urls"] == "https://***,https://***"
    assert settings.alerts.masked()["notify"] == "slack://***"
    assert settings.alerts.masked()["alertmanager_url"] == "http://user:***@am:9093"
    assert "geheim" not in repr(settings)


def test_an_error_about_urls_does_not_show_them() -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(flags={"alerts.webhook_urls": 5})  # type: ignore[dict-item]
    assert "5" not in str(raised.value)
