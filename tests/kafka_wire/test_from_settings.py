"""Connection security from settings: contradictions, secrets and untrusted settings files."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from headrace.kafka_wire.from_settings import client_options, kafka_security, secrets_in_environment
from headrace.kafka_wire.security import UNSECURED, SecurityConfigError
from headrace.pipeline.load import run_settings
from headrace.settings import KafkaSettings, Settings, SettingsError, load_settings

LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "user": "u"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"ca": "x"}, ["kafka.ca", "kafka.security_protocol", "PLAINTEXT"]),
        ({"security_protocol": "SSL", "key": "x"}, ["kafka.key", "kafka.certificate"]),
        ({"security_protocol": "SASL_SSL"}, ["kafka.security_protocol", "SASL_SSL", "kafka.sasl_mechanism"]),
        ({"sasl_mechanism": "PLAIN", "user": "u"}, ["PLAINTEXT", "kafka.sasl_mechanism"]),
        ({**LOGIN, "user": ""}, ["kafka.sasl_mechanism", "PLAIN", "kafka.user"]),
        ({**LOGIN, "sasl_mechanism": "OAUTHBEARER"}, ["OAUTHBEARER", "kafka.token_file"]),
        ({**LOGIN, "password": "s3cret", "password_file": "x"}, ["kafka.password ", "kafka.password_file"]),
    ],
)
def test_error_names_settings_that_contradict_each_other(given: dict[str, str], named: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        kafka_security(Settings(kafka=KafkaSettings(**given)))
    assert [name for name in named if name not in str(caught.value)] == []
    assert "s3cret" not in str(caught.value)


def test_tasks_and_logs_contain_no_secret() -> None:
    settings = Settings(kafka=KafkaSettings(**LOGIN, password="s3cret", key_password="k3y"))
    task = run_settings(settings).task
    assert b"s3cret" not in pickle.dumps(task) and b"k3y" not in pickle.dumps(task)
    for shown in (repr(settings), repr(kafka_security(settings)), repr(task), str(settings.masked())):
        assert "s3cret" not in shown and "k3y" not in shown
    variables = secrets_in_environment(settings)
    assert variables == {"HEADRACE__KAFKA__PASSWORD": "s3cret", "HEADRACE__KAFKA__KEY_PASSWORD": "k3y"}


def test_task_reads_secret_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    security = kafka_security(Settings(kafka=KafkaSettings(**LOGIN, password="s3cret"))).without_secrets()
    monkeypatch.delenv("HEADRACE__KAFKA__PASSWORD", raising=False)
    with pytest.raises(SecurityConfigError, match=r"\bkafka\.password\b.*\bkafka\.password_file\b"):
        security.sasl_options()
    monkeypatch.setenv("HEADRACE__KAFKA__PASSWORD", "from there")
    assert security.sasl_options()["sasl_plain_password"] == "from there"
    file = tmp_path / "password"
    monkeypatch.chdir(tmp_path)
    security = kafka_security(Settings(kafka=KafkaSettings(**LOGIN, password_file="password"))).without_secrets()
    monkeypatch.chdir("/")
    for content in ("one", "two\n"):
        file.write_text(content)
        assert security.sasl_options()["sasl_plain_password"] == content.strip()
    for content in ("", "two\nlines"):
        file.write_text(content)
        with pytest.raises(SecurityConfigError, match=re.escape(str(file))):
            security.sasl_options()


def test_client_options_without_security_need_no_connection() -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    assert kafka_security(settings) == UNSECURED
    assert client_options(settings) == {"bootstrap_servers": "127.0.0.1:1", "security_protocol": "PLAINTEXT"}


SASL = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"'
EVIL = f'[kafka]\n{SASL}\nbootstrap_servers = "evil.example:9093"'
PASSWORD = {"kafka.user": "ci", "kafka.password": "s3cret"}


def settings_of_directory(
    directory: Path, text: str, variables: dict[str, str], *, config: Path | None = None
) -> Settings:
    """Returns settings from a file in the working directory and from the environment."""
    (directory / "headrace.toml").write_text(text)
    environment = {f"HEADRACE__{key.upper().replace('.', '__')}": value for key, value in variables.items()}
    return load_settings(working_dir=directory, environment=environment, config=config)


@pytest.mark.parametrize(
    ("text", "variables", "trusted"),
    [
        (EVIL, PASSWORD, "kafka.user"),
        (f'{EVIL}\nuser = "ci"', {"kafka.password": "s3cret"}, "kafka.password"),
        (f'{EVIL}\nuser = "ci"', {"kafka.password_file": "/run/secrets/kafka"}, "kafka.password_file"),
        (f'{EVIL}\nuser = "ci"\npassword_file = "/run/secrets/kafka"', {}, "kafka.password_file"),
        (f'{EVIL}\nuser = "ci"\npassword_file = "../kafka"', {}, "kafka.password_file"),
        (f'{EVIL}\ntoken_file = "/run/secrets/kafka"', {"kafka.sasl_mechanism": "OAUTHBEARER"}, "kafka.token_file"),
        (f'[broker]\nlisten = "evil.example:9092"\n[kafka]\n{SASL}', PASSWORD, "kafka.user"),
        ('[kafka]\nbootstrap_servers = "evil.example:9093"',
         {**PASSWORD, "kafka.security_protocol": "SASL_PLAINTEXT", "kafka.sasl_mechanism": "PLAIN"}, "kafka.user"),
    ],
)  # fmt: skip
def test_credentials_are_not_sent_to_brokers_of_an_untrusted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str], trusted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of_directory(tmp_path, text, variables)
    for build in (kafka_security, client_options):
        with pytest.raises(SettingsError, match=rf"\bheadrace\.toml\b.*\b{trusted}\b") as caught:
            build(settings)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        (f'{EVIL}\nuser = "ci"\npassword = "own"', {}),
        (f'{EVIL}\nuser = "ci"\npassword_file = "own"', {}),
        (EVIL, {**PASSWORD, "kafka.bootstrap_servers": "good.example:9093"}),
        (f"[kafka]\n{SASL}", PASSWORD),
        ('[kafka]\nbootstrap_servers = "evil.example:9093"', PASSWORD),  # the credentials are not sent
        ('[kafka]\nuser = "ci"\npassword = "own"',
         {"kafka.bootstrap_servers": "good.example:9093", "kafka.security_protocol": "SASL_SSL",
          "kafka.sasl_mechanism": "PLAIN"}),
    ],
)  # fmt: skip
def test_credentials_are_sent_to_brokers_of_the_same_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kafka_security(settings_of_directory(tmp_path, text, variables))


def test_named_settings_file_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kafka_security(settings_of_directory(tmp_path, EVIL, PASSWORD, config=tmp_path / "headrace.toml"))
