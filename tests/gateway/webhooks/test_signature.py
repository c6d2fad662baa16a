"""Signatures of webhooks, compared with one that the library `standardwebhooks` 1.1.0 made."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.gateway.webhooks.signature import BadSecret, read_secret, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", SECRET.removeprefix("whsec_")])
def test_signature_is_that_of_the_library(text: str, tmp_path: Path) -> None:
    key = read_secret(written(tmp_path / "secret", text))
    assert signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}') == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_without_key_there_is_no_signature() -> None:
    assert signed_headers(None, "a", 1, b"") == {"webhook-id": "a", "webhook-timestamp": "1"}


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_AAAA", "whsec_?", f"{SECRET[:20]}*{SECRET[20:]}", "ключ", SECRET * 4]
)
def test_other_secrets_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match="expected whsec_ and 24 to 64 bytes in base64"):
        read_secret(written(tmp_path / "secret", text))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSecret, match="No such file"):
        read_secret(tmp_path / "secret")
