from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.settings import Address, Duration, LoaderSettings, Settings, SettingsError, known_keys, load_settings
from headrace.settings.addresses import warehouse_location
from headrace.settings.loading import COMMAND_LINE


def test_defaults_listen_on_loopback_and_run_spark_locally() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert str(settings.registry.listen) == "127.0.0.1:8081"
    assert str(settings.broker.listen) == "127.0.0.1:9092"
    assert settings.spark["master"] == "local[*]"
    assert settings.sql.listen is None


def test_flags_override_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[loader]\ntasks = 3\ninterval = "5m"\ntime_fields = ["at"]\n[hive]\ndatabase = "file"\n'
        '[spark]\nmaster = "local[1]"\n"sql.shuffle.partitions" = 2\nexecutor.memory = "1g"\n'
    )
    settings = load_settings(
        working_dir=tmp_path,
        environment={"HEADRACE__HIVE__DATABASE": "environment", "HEADRACE__LOADER__TASKS": "4", "HEADRACE_OTHER": "x"},
        flags={"loader.tasks": "5"},
    )
    assert (settings.loader.tasks, settings.hive.database) == (5, "environment")
    assert settings.loader.interval == Duration(300_000)
    assert settings.loader.time_fields == ("at",)
    assert settings.spark == {"master": "local[1]", "sql.shuffle.partitions": "2", "executor.memory": "1g"}


UNUSABLE = [
    ("loader.taks", "3", "loader.tasks"),
    ("nowhere", "3", "data_dir"),
    ("loader.tasks", "many", "many"),
    ("loader.tasks", "-1", "0"),
    ("broker.node_id", "-1", "0"),
    ("broker.node_id", "99999999999", "2147483647"),
    ("broker.advertised_port", "99999", "65535"),
    ("broker.partitions", "999999", "10000"),
    ("broker.segment_bytes_max", "4294967296", "2147483647"),
    ("broker.message_bytes_max", "100000000", "67108864"),
    ("broker.session_timeout_min", "1h", "30m"),
    ("broker.consumer_heartbeat_interval", "0s", "1ms"),
    ("broker.consumer_heartbeat_interval", "99999d", "24d"),
    ("broker.listen", "9092", "host:port"),
    ("broker.listen", "localhost:70000", "65535"),
    ("loader.interval", "10", "'10'"),
    ("loader.partition_by", "week", "hour, day"),
    ("registry.api_profile", "9", "7, 8"),
    ("registry.rule_sets", "dro", "keep, drop"),
    ("loader.quarantine_ratio_max", "1.5", "'1.5'"),
    ("data_dir", "", "''"),
]
"""Setting, invalid value, and text that the error contains besides setting and source: the nearest setting, the bound,
the choices or the value."""


def test_error_names_the_setting_its_source_and_the_permitted_values() -> None:
    errors = [(key, value, expected, error_of(flags={key: value})) for key, value, expected in UNUSABLE]
    assert [
        (key, value, error)
        for key, value, expected, error in errors
        if "\n" in error or key not in error or COMMAND_LINE not in error or expected not in error
    ] == []


def error_of(**sources: Any) -> str:
    """Returns the error message of settings from these sources, or ""."""
    try:
        load_settings(**sources)
    except SettingsError as error:
        return str(error)
    return ""


def test_config_file_must_exist_and_be_toml(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        load_settings(config=tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("[loader\n")
    with pytest.raises(SettingsError, match=r"broken\.toml"):
        load_settings(environment={"HEADRACE_CONFIG": str(tmp_path / "broken.toml")})


def test_first_matching_topic_table_with_a_key_sets_it(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[loader]\ncodec = "null"\n'
        '[[loader.topic]]\npattern = "clicks|page\\\\..*"\npartition_by = "day"\ntime_fields = ["at"]\n'
        '[[loader.topic]]\npattern = ".*s"\npartition_by = "hour"\non_data_loss = "skip"\nfuture_max = "2h"\n'
    )
    loader = load_settings(working_dir=tmp_path, flags={"loader.tasks": "3"}).loader
    clicks = loader.of_topic("clicks")
    assert (clicks.partition_by, clicks.time_fields, clicks.on_data_loss) == ("day", ("at",), "skip")
    assert (clicks.future_max, clicks.codec, clicks.tasks) == (Duration(7_200_000), "null", 3)
    assert loader.of_topic("page.views").on_data_loss == "skip"
    assert loader.of_topic("orders").partition_by == "hour"
    for unmatched in ("clicks2", "my clicks!", "pagex"):
        assert loader.of_topic(unmatched) == loader
    assert load_settings().loader.of_topic("clicks") == LoaderSettings()


UNUSABLE_TABLES = [
    ('codec = "null"', "pattern"),
    ('pattern = ""', "pattern"),
    ("pattern = 3", "pattern"),
    ('pattern = "("', "pattern", "'('"),
    ('pattern = "x"\ncodex = "null"', "'codex'", "codec"),
    ('pattern = "x"\ntasks = 3', "'tasks'"),
    ('pattern = "x"\ncodec = "zip"', "loader.codec", "'zip'"),
    ('pattern = "x"\nquarantine_ratio_max = 2', "loader.quarantine_ratio_max"),
    ('pattern = "x"\ntime_fields = 3', "loader.time_fields"),
    ('pattern = "x"\nsubject = "{record}"', "loader.subject", "'{record}'"),
    ('pattern = "x"\nsubject = "a\\nb"', "loader.subject"),
    ('pattern = "x"\nsubject = ""', "loader.subject", "''"),
]
"""Invalid [[loader.topic]] table, and the texts that its error contains besides the table."""


def test_error_in_a_topic_table_names_the_table_and_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    wrong = []
    for table, *named in UNUSABLE_TABLES:
        file.write_text(f'[[loader.topic]]\npattern = "a"\n[[loader.topic]]\n{table}\n')
        error = error_of(config=file)
        if "\n" in error or not all(text in error for text in ("[[loader.topic]] number 2", str(file), *named)):
            wrong.append((table, error))
    assert wrong == []


def test_subject_of_a_topic_comes_from_its_table_or_the_default_template(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[[loader.topic]]\npattern = "refunds|orders"\nsubject = "shop.Order"\n'
        '[[loader.topic]]\npattern = "eu\\\\..*"\nsubject = "{topic}-shop.Order"\n'
    )
    loader = load_settings(working_dir=tmp_path).loader
    assert [loader.subject_of(topic) for topic in ("orders", "refunds", "eu.orders", "clicks")] == [
        "shop.Order",
        "shop.Order",
        "eu.orders-shop.Order",
        "clicks-value",
    ]


def test_topic_tables_are_only_accepted_as_array_of_tables_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[loader.topic]\npattern = "a"\n')
    for settings in ({"working_dir": tmp_path}, {"environment": {"HEADRACE__LOADER__TOPIC": "a"}}):
        with pytest.raises(SettingsError, match=r"\[\[loader\.topic\]\]"):
            load_settings(**settings)  # type: ignore[arg-type]


def test_invalid_topic_pattern_is_an_error_when_settings_load() -> None:
    with pytest.raises(SettingsError, match=r"loader\.topics_include.*'\('"):
        load_settings(flags={"loader.topics_include": "ok,("})


def test_passwords_are_masked() -> None:
    settings = load_settings(
        flags={"registry.database_url": "postgresql://me:hunter2@db/x"},
        environment={"HEADRACE__SPARK__SSL.KEYPASSWORD": "hunter2"},
    )
    assert "hunter2" not in repr(settings)
    assert settings.registry.database_url.endswith("hunter2@db/x")


def test_passwords_in_urls_are_masked() -> None:
    """If the extent of the password is ambiguous, the longer text is masked."""
    expected = {
        "http://me:hunter2@a:1,https://me:hun,ter2@b:2": "http://me:***@a:1,https://me:***@b:2",
        "http://me:hunt/er@2@a:1": "http://me:***@a:1",
        "http://a:1,http://b:2/me@x": "http://a:1,http://b:***@x",
    }
    assert {url: load_settings(flags={"registry.url": url}).masked()["registry"]["url"] for url in expected} == expected  # type: ignore[index]


def test_credentials_of_clients_are_masked() -> None:
    for key in ("client_password", "client_token", "client_key_password"):
        assert "hunter2" not in repr(load_settings(flags={f"registry.{key}": "hunter2"}))
        with pytest.raises(SettingsError) as caught:
            load_settings(flags={f"registry.{key}": ["hunter2"]})  # type: ignore[dict-item]
        assert "hunter2" not in str(caught.value)


SECRETS_OF_SPARK = (
    "hadoop.javax.jdo.option.ConnectionPassword",
    "ssl.keyPassword",
    "hadoop.ssl.server.keystore.pass",
    "hadoop.fs.s3a.access.key",
    "hadoop.fs.s3a.secret.key",
    "hadoop.fs.s3a.session.token",
    "hadoop.fs.s3a.server-side-encryption.key",
    "hadoop.fs.azure.account.key.store.blob.core.windows.net",
    "hadoop.fs.azure.sas.box.store.blob.core.windows.net",
    "hadoop.fs.gs.auth.service.account.private.key.id",
    "hadoop.fs.oss.accessKeyId",
    "hadoop.fs.oss.sharedKey",
    "executorEnv.AWS_ACCESS_KEY_ID",
    "executorEnv.DB_PASSWD",
    "executorEnv.DB_PWD",
    "executorEnv.KEY_PASSPHRASE",
    "executorEnv.PASSCODE",
    "x.API_KEY.1",
    "x.accountKey.1",
    "x.encryptionKey.1",
    "x.privateKey.1",
    "hadoop.some.Credential",
    "authenticate.SECRET",
)


def test_secrets_of_spark_are_masked_in_any_case(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text("[spark]\n" + "".join(f'"{key}" = "hunter2"\n' for key in SECRETS_OF_SPARK))
    settings = load_settings(config=config)
    assert settings.masked()["spark"] == {"master": "local[*]", **dict.fromkeys(SECRETS_OF_SPARK, "***")}
    assert "hunter2" not in repr(settings)


def test_spark_properties_without_secrets_are_not_masked() -> None:
    keys = (
        "kerberos.keytab",
        "ssl.keyStore",
        "hadoop.hive.metastore.sasl.enabled",
        "shuffle.sort.bypassMergeThreshold",
        "executor.memory",
    )
    shown = load_settings(flags={f"spark.{key}": "seen" for key in keys}).masked()["spark"]
    assert shown == {"master": "local[*]", **dict.fromkeys(keys, "seen")}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("jdbc:postgresql://me:hunter2@db/hive", "jdbc:postgresql://me:***@db/hive"),
        ("jdbc:mysql://db/hive?user=me&password=hunter2&ssl=on", "jdbc:mysql://db/hive?user=me&password=***&ssl=on"),
        ("jdbc:sqlserver://db;Password=hunter2;encrypt=on", "jdbc:sqlserver://db;Password=***;encrypt=on"),
        ("-Da=1 -Dx.trustStorePassword=hunt&er2 -Db=2", "-Da=1 -Dx.trustStorePassword=*** -Db=2"),
        ("-Dx.access.key='hun ter2' -Db=2", "-Dx.access.key=*** -Db=2"),
        ('-Dx.access.key="hun ter2"', "-Dx.access.key=***"),
    ],
)
def test_secrets_within_other_values_are_masked(value: str, shown: str) -> None:
    found = load_settings(flags={"spark.driver.extraJavaOptions": value, "registry.database_url": value}).masked()
    assert found["spark"]["driver.extraJavaOptions"] == shown  # type: ignore[index]
    assert found["registry"]["database_url"] == (shown if "://" in value else "***")  # type: ignore[index]


def test_password_that_looks_like_an_address_is_masked() -> None:
    settings = load_settings(flags={"kafka.password": "http://hunter2", "loader.warehouse": "s3a://me:hunter2@bucket"})
    assert settings.masked()["kafka"]["password"] == "***"  # type: ignore[index]
    assert settings.masked()["loader"]["warehouse"] == "s3a://me:***@bucket"  # type: ignore[index]


def test_file_names_and_token_issuers_are_not_masked() -> None:
    keys = (
        "kafka.token_file",
        "registry.client_token_file",
        "registry.token_keys",
        "registry.token_issuer",
        "kafka.key",
    )
    settings = load_settings(flags=dict.fromkeys(keys, "/etc/seen"))
    for key in keys:
        section, _, name = key.partition(".")
        assert settings.masked()[section][name] == "/etc/seen"  # type: ignore[index]


def test_repr_of_a_section_masks_secrets() -> None:
    settings = load_settings(flags={"kafka.password": "hunter2", "kafka.user": "me"})
    assert "hunter2" not in repr(settings.kafka)
    assert repr(settings.kafka).startswith("KafkaSettings({'bootstrap_servers': '',")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hive.executor", "hive://me:hunter2@h:1"),
        ("registry.compatibility", "http://me:hunter2@h"),
        ("registry.workers", "http://me:hunter2@h"),
        ("loader.subject", "{x}http://me:hunter2@h"),
        ("registry.database_url", ["http://me:hunter2@h"]),
    ],
)
def test_error_of_a_value_masks_its_password(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=re.escape(key)) as caught:
        load_settings(flags={key: value})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3a://me:hunter2@bucket", "ftp://me:hunter2@host/directory"])
def test_error_of_a_warehouse_masks_its_password(uri: str) -> None:
    with pytest.raises(SettingsError, match=r"'\w+://me:\*\*\*@") as caught:
        warehouse_location(load_settings(flags={"loader.warehouse": uri}))
    assert "hunter2" not in str(caught.value)


def test_addresses_and_durations_parse_and_format() -> None:
    assert Address.parse(":0") == Address("127.0.0.1", 0)
    assert Address.parse("[::1]:9092") == Address("::1", 9092)
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert [str(Duration.parse(text)) for text in ("10m", "90s", "500ms", "7d", "0s")] == [
        "10m",
        "90s",
        "500ms",
        "7d",
        "0ms",
    ]


def test_known_keys_are_unique() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert {"data_dir", "registry.listen", "loader.partition_by", "hive.metastore", "sql.listen"} <= set(keys)


def test_relative_paths_in_a_file_are_relative_to_its_directory(tmp_path: Path) -> None:
    """A command therefore does not depend on the directory in which it is started."""
    file = tmp_path / "srv" / "headrace.toml"
    file.parent.mkdir()
    file.write_text("")
    assert load_settings(config=file).data_dir == file.parent / "headrace-data"
    file.write_text('data_dir = "data"\n[loader]\nwarehouse = "tables"\n')
    settings = load_settings(config=file, working_dir=tmp_path)
    assert settings.data_dir == file.parent / "data"
    assert settings.loader.warehouse == str(file.parent / "tables")
    file.write_text('data_dir = "/data"\n[loader]\nwarehouse = "file:///tables"\n')
    settings = load_settings(config=file)
    assert (str(settings.data_dir), settings.loader.warehouse) == ("/data", "file:///tables")
    # Paths from flags and the environment are relative to the working directory.
    environment = {"HEADRACE__LOADER__WAREHOUSE": "typed"}
    settings = load_settings(config=file, flags={"data_dir": "here"}, environment=environment)
    assert (settings.data_dir, settings.loader.warehouse) == (Path("here"), "typed")
    assert load_settings(working_dir=tmp_path).data_dir == Path("headrace-data")


def test_keys_from_a_file_found_in_the_working_directory_are_recorded(tmp_path: Path) -> None:
    """A checkout may be untrusted; a file that the user named, or the one in the home directory, is trusted."""
    working_dir, home = tmp_path / "here", tmp_path / "home"
    for file in (working_dir / "headrace.toml", home / ".config" / "headrace" / "headrace.toml"):
        file.parent.mkdir(parents=True)
        file.write_text('[registry]\nurl = "http://r"\n')
    directories = {"working_dir": working_dir, "home": home}
    assert load_settings(**directories).keys_from_working_directory == {"registry.url"}
    assert load_settings(**directories, flags={"registry.url": "http://f"}).keys_from_working_directory == frozenset()
    assert load_settings(**directories, config=working_dir / "headrace.toml").keys_from_working_directory == frozenset()
    named = {"HEADRACE_CONFIG": str(working_dir / "headrace.toml")}
    assert load_settings(**directories, environment=named).keys_from_working_directory == frozenset()
    (working_dir / "headrace.toml").unlink()
    assert load_settings(**directories).registry.url == "http://r"
    assert load_settings(**directories).keys_from_working_directory == frozenset()


MISSPELT_VARIABLES = {
    "HEADRACE_LOG_FROMAT": "HEADRACE_LOG_FORMAT",
    "HEADRACE_LOGLEVEL": "HEADRACE_LOG_LEVEL",
    "HEADRACE_CONFIG_FILE": "HEADRACE_CONFIG",
    "HEADRACE_LOADER_TASKS": "HEADRACE__LOADER__TASKS",
    "HEADRACE_LOADER__PARTITION_BY": "HEADRACE__LOADER__PARTITION_BY",
    "HEADRACE_DATA_DIR": "HEADRACE__DATA_DIR",
}


def test_error_of_a_misspelt_variable_suggests_the_right_one() -> None:
    errors = {name: error_of(environment={name: "x"}) for name in MISSPELT_VARIABLES}
    named = {name: tuple(re.findall(r"\bHEADRACE_\w+", error)) for name, error in errors.items()}
    assert named == {name: (name, correct) for name, correct in MISSPELT_VARIABLES.items()}


def test_variables_of_other_programs_are_ignored() -> None:
    names = (
        *("HEADRACE_LOG_LEVEL", "HEADRACE_LOG_FORMAT", "HEADRACE_PACKAGE", "HEADRACE_HOME", "HEADRACE_TEST_SEED"),
        # Kubernetes sets these for services named headrace-config, headrace-log-level and headrace-broker-advertised.
        *("HEADRACE_CONFIG_PORT", "HEADRACE_CONFIG_SERVICE_PORT", "HEADRACE_LOG_LEVEL_PORT_80_TCP_ADDR"),
        "HEADRACE_BROKER_ADVERTISED_PORT",
    )
    assert {name: error for name in names if (error := error_of(environment={name: "x"}))} == {}
