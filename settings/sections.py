"""Every setting, by section, with its default and meaning."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.settings.masking import mask_value
from headrace.settings.values import Address, Duration


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """One section of the settings. The name of a subclass is the section's name with `Settings`, such as
    `BrokerSettings`."""

    def masked(self) -> dict[str, str]:
        """Returns the section's values as text by key, with secrets masked."""
        section = type(self).__name__.removesuffix("Settings").lower()
        return {
            key.name: mask_value(f"{section}.{key.name}", getattr(self, key.name)) for key in dataclasses.fields(self)
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.masked()})"


@dataclass(frozen=True, slots=True, repr=False)
class RegistrySettings(Section):
    listen: Address = Address("127.0.0.1", 8081)
    database_url: str = ""  # SQLAlchemy URL; "" is SQLite in data_dir/registry.db
    database_connections: int = 10  # PostgreSQL connections per process; revision checks and id allocation use two more
    # URL for clients; several separated by commas, the first preferred; "" is a running `headrace up` on data_dir,
    # else `listen`
    url: str = ""
    # user name that producers, consumers, the loader and the audit send to the registry; "" sends no credentials
    client_user: str = ""
    client_password: str = ""  # password of `client_user`
    client_token: str = ""  # bearer token, instead of user and password
    client_token_file: str = ""  # file that holds the bearer token; read before every request
    client_ca: str = ""  # PEM file of the certificate authorities to trust on https; "" is the system's trust store
    client_certificate: str = ""  # PEM file of the client certificate for https
    client_key: str = ""  # PEM file of its private key; "" if `client_certificate` contains the key
    client_key_password: str = ""  # password of an encrypted private key
    # hosts that may receive these credentials although only the headrace.toml of the working directory names the URL
    client_hosts: tuple[str, ...] = ()
    client_timeout: Duration = Duration(10_000)  # timeout of a connection attempt and of each wait for a response
    compatibility: str = "BACKWARD"  # compatibility level of subjects without a level of their own
    # release of the Confluent Schema Registry that response bodies, error codes and modes follow; 7 suits clients older
    # than 7.0
    api_profile: int = 8
    # keep | drop: whether rule sets of requests are stored; dropped rule sets do not affect ids, as in the community
    # edition
    rule_sets: str = "keep"
    mode_changes: str = "allow"  # allow | refuse: whether clients may change modes (READONLY, IMPORT)
    request_bytes_max: int = 4 * 1024 * 1024  # size of a request body; a schema may have half as many characters
    workers: int = 1  # number of worker processes; more than the available cores does not help
    users: str = ""  # file of users and their permissions; "" permits every request of every client of the registry
    # loopback | network: addresses on which a registry without `users` may listen
    allow_unauthenticated_from: str = "loopback"
    tls_certificate: str = ""  # PEM file of the server certificate with its chain; "" serves plain HTTP
    tls_key: str = ""  # PEM file of its unencrypted private key; "" if `tls_certificate` contains the key
    # host:port of the listener that requires client certificates and takes the user from them; "" disables it
    tls_client_listen: str = ""
    # PEM file of the certificate authorities that issue the client certificates of that listener
    tls_client_ca: str = ""
    token_keys: str = ""  # file or URL of the JSON Web Key Set that verifies bearer tokens; "" rejects bearer tokens
    token_issuer: str = ""  # required claim `iss` of tokens
    token_audience: str = ""  # required entry of the claim `aud` of tokens
    user_claim: str = "sub"  # claim with the user name
    # claim with the roles that `users` grants permissions to; `a.b` is claim b inside claim a
    roles_claim: str = "roles"
    # rate limit of one client at one worker, with bursts of ten seconds' worth; 0 is unlimited
    requests_per_second_max: int = 0
    # origins of the web pages that may call the registry from a browser, such as "https://ui.example.com"; "*" is every
    # page, without stored credentials. The default permits no page
    access_control_allow_origin: tuple[str, ...] = ()
    access_log: str = ""  # file that receives one JSON line per request; "-" is standard error, "" is no log
    # file that receives one JSON line per change, with its user; "" is data_dir/logs/registry-audit.jsonl, "-" is
    # standard error, "off" is no log
    audit_log: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class BrokerSettings(Section):
    listen: Address = Address("127.0.0.1", 9092)
    advertised_host: str = ""  # host name or address that clients connect to; "" is that of `listen`
    advertised_port: int = 0  # port that clients connect to; 0 is the port of the listener
    tls_certificate: str = ""  # PEM file of the server certificate with its chain; "" is no TLS
    tls_key: str = ""  # PEM file of its unencrypted private key; "" if `tls_certificate` contains the key
    # PEM file of the authorities of the client certificates that are then required; "" requires none
    tls_client_ca: str = ""
    metrics_listen: str = ""  # host:port that serves GET /metrics for Prometheus without authentication; "" disables it
    users: str = ""  # file of users and their permissions; "" permits every request of every client of the broker
    # loopback | network: addresses on which a broker with neither `users` nor `tls_client_ca` may listen
    allow_unauthenticated_from: str = "loopback"
    connections_per_address_max: int = 0  # concurrent connections from one IP address; 0 is unlimited
    # quota of one user (without users: one IP address) for sent and received bytes together; 0 is unlimited
    bytes_per_second_max: int = 0
    partitions: int = 4  # partitions of a topic that is created automatically, or by a request without a number
    # age of the newest record timestamp at which a segment is deleted, like Kafka's retention.ms
    retention: Duration = Duration(7 * 86_400_000)
    segment_bytes_max: int = 1024 * 1024 * 1024  # size of one log segment; retention deletes whole segments
    message_bytes_max: int = 1_048_588  # size of one record batch; the default is Kafka's
    fsync: str = "interval"  # none | interval | always: when appended batches are fsynced
    auto_create_topics: bool = True  # whether a metadata request that names a missing topic creates it
    # wait of an empty group for more members before the first rebalance; Kafka's default is 3s
    rebalance_delay: Duration = Duration(0)
    session_timeout_min: Duration = Duration(6000)  # shortest session timeout that a group member may request
    consumer_session_timeout: Duration = Duration(45_000)  # session timeout of members with group.protocol=consumer
    # heartbeat interval of members with group.protocol=consumer, sent to them in responses
    consumer_heartbeat_interval: Duration = Duration(5000)
    node_id: int = 1  # node id of the broker in responses
    # fail | rename: action of a start that finds corruption in fsynced data; rename moves the corrupt file to
    # `.corrupt`
    on_corruption: str = "fail"


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings(Section):
    bootstrap_servers: str = ""  # host:port,…; "" is a running `headrace up` on data_dir, else broker.listen
    security_protocol: str = "PLAINTEXT"  # PLAINTEXT | SSL | SASL_PLAINTEXT | SASL_SSL, with Kafka's meanings
    ca: str = ""  # PEM file of the certificate authorities to trust with TLS; "" is the system's trust store
    certificate: str = ""  # PEM file of the client certificate
    key: str = ""  # PEM file of its private key; "" if `certificate` contains the key
    key_password: str = ""  # password of an encrypted private key
    key_password_file: str = ""  # file that holds the password of the private key
    sasl_mechanism: str = ""  # PLAIN | SCRAM-SHA-256 | SCRAM-SHA-512 | OAUTHBEARER | GSSAPI
    user: str = ""  # user name for PLAIN and SCRAM
    password: str = ""  # password of `user`
    password_file: str = ""  # file that holds the password of `user`
    token_file: str = ""  # file that holds the token for OAUTHBEARER
    kerberos_service: str = "kafka"  # first part of the brokers' principals, for GSSAPI


@dataclass(frozen=True, slots=True)
class TopicTable:
    """One `[[loader.topic]]` of the settings file: `values` has values of `loader` keys for topics with names that
    match `pattern` as a whole."""

    pattern: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class LoaderSettings(Section):
    # directory or file://, hdfs:// or s3a:// URI of the tables' files; "" is that of a running `headrace up` on
    # data_dir, else data_dir/warehouse
    warehouse: str = ""
    state: str = ""  # directory or URI of the commit log; "" is _headrace in the warehouse
    tasks: int = 0  # size of the fixed pool of tasks; 0 is the number of cores
    interval: Duration = Duration(600_000)  # time between the scheduled loads of `headrace up`, aligned to the clock
    # how long `up` keeps Spark running after a load for the next one; 0s stops it at once
    spark_idle_timeout: Duration = Duration(1_800_000)
    # hour (dt and hr) | day (dt alone) | auto: of a new table, by day unless the topic's first load is busy
    partition_by: str = "auto"
    topics_include: tuple[str, ...] = (".*",)  # regular expressions that match whole topic names
    # regular expressions of topics to leave out; `__*` and `_schemas` are always left out
    topics_exclude: tuple[str, ...] = ()
    # fields that may hold the message time, as dotted paths; the first one with a time in the message is used
    time_fields: tuple[str, ...] = ("header.time", "timestamp")
    subject: str = "{topic}-value"  # registry subject of a topic's values; {topic} is the topic's name
    codec: str = "snappy"  # Avro codec of the files: null | deflate | snappy
    # target size of a data file: only larger offset ranges are split over tasks
    file_bytes_target: int = 256 * 1024 * 1024
    range_bytes_max: int = 4 * 1024 * 1024 * 1024  # estimated bytes that one load reads from one topic partition
    kafka_column: str = "position"  # none | position | full: which Kafka metadata of a record its row contains
    # maximum share of bad messages of a topic in a load; above it the load exits 1, and with more than 100 bad
    # messages the topic is not loaded
    quarantine_ratio_max: float = 0.1
    # fail | skip: when a topic partition's offsets were deleted or replaced before they were read
    on_data_loss: str = "fail"
    record_bytes_max: int = 64 * 1024 * 1024  # size of an uncompressed record batch; a larger one counts as corrupt
    corrupt_batches: str = "fail"  # fail | quarantine | skip: what to do with a corrupt record batch
    future_records: str = "own_time"  # own_time | clamp: the time partition of a message dated in the future, see below
    # how far the message time may be after the arrival before `clamp` applies
    future_max: Duration = Duration(86_400_000)
    staging_age: Duration = Duration(7 * 86_400_000)  # age at which uncommitted files in staging are deleted
    retention_days: int = 0  # complete days that expiry keeps of a topic; 0 keeps all
    compact: bool = True  # whether `up` and `compact` without topics merge the topic's small files
    # wait after the end of a time partition, and after late messages for it, before its small files are merged
    compact_after: Duration = Duration(21_600_000)
    run_log: str = ""  # file that receives one JSON line per load; "" is data_dir/logs/runs.jsonl, "off" is no log
    topic: tuple[TopicTable, ...] = ()  # tables of settings for some topics, see below

    def of_topic(self, topic: str) -> LoaderSettings:
        """Returns the settings of one topic: for each key, the value in the first `[[loader.topic]]` that has the key
        and a pattern matching the topic, else the value in `[loader]`."""
        values: dict[str, Any] = {}
        for table in self.topic:
            if re.fullmatch(table.pattern, topic):
                values = {**table.values, **values}
        return dataclasses.replace(self, **values) if values else self

    def subject_of(self, topic: str) -> str:
        """Returns the registry subject of a topic's values."""
        return self.of_topic(topic).subject.replace("{topic}", topic)


@dataclass(frozen=True, slots=True, repr=False)
class HiveSettings(Section):
    database: str = "headrace"
    metastore: str = ""  # thrift://host:port; "" is a running `headrace up` on data_dir, else Derby in data_dir
    listen: Address = Address("127.0.0.1", 9083)  # address of the metastore that `headrace up` serves
    memory: str = "1g"  # heap of that metastore's JVM, in the form of Java's -Xmx
    # spark: metastore client | hive://host:port: HiveServer2 or Spark Thrift Server | print: only shows statements
    executor: str = "spark"
    # authentication of hive://…: NONE | NOSASL | LDAP | CUSTOM | KERBEROS, as configured on the server
    server_auth: str = "NONE"
    server_user: str = ""  # user name at hive://…; "" is the user of the process
    server_password: str = ""  # password of `server_user`, for LDAP and CUSTOM
    server_password_file: str = ""  # file that holds the password of `server_user`
    server_kerberos_service: str = "hive"  # first part of the server's principal, for KERBEROS
    # length of a table schema above which it is stored in a file (avro.schema.url), not in avro.schema.literal
    literal_chars_max: int = 30_000
    # whether loads create the view <table>_latest with only the newest schema's fields, in Spark SQL
    latest_views: bool = False
    # whether the doc of a field becomes the comment of its column; false for a metastore that cannot store all
    # characters
    column_comments: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class SqlSettings(Section):
    # address of the SQL endpoint that `headrace up` serves to PyHive, beeline and BI tools, with the users of
    # `registry.users`; None is off
    listen: Address | None = None
    # loopback | network: addresses on which the SQL endpoint may listen without `registry.users`
    allow_unauthenticated_from: str = "loopback"
    tls_certificate: str = ""  # PEM file of the server certificate with its chain; "" is no TLS
    tls_key: str = ""  # PEM file of its unencrypted private key; "" if `tls_certificate` contains the key
    audit_statements: bool = False  # whether `logs/sql-audit.jsonl` has the text of statements, besides their kind
    memory: str = "1g"  # memory for all queries of `headrace up` together; above it only SQL stops, and restarts


@dataclass(frozen=True, slots=True, repr=False)
class AuditSettings(Section):
    datacenter: str = ""  # name of the data centre in the counts of producers, consumers, auditor and loader
    grace: Duration = Duration(1_800_000)  # wait after the end of a window before missing messages are reported
    topic: str = "headrace.audit"  # topic of the counts that producers and consumers publish
    # patterns of topics on which every producer counts; more messages than counted are then `extra`
    counted_topics: tuple[str, ...] = ()
    # time without new counts after which the findings of a window are `expired`
    findings_ttl: Duration = Duration(30 * 86_400_000)
    # time after the newest count of a window after which its counts and its verdict are deleted; maps stay 400 days
    retention: Duration = Duration(30 * 86_400_000)
    database_url: str = ""  # SQLAlchemy URL of the counts and verdicts; "" is SQLite in data_dir/audit.db


@dataclass(frozen=True, slots=True, repr=False)
class ConsoleSettings(Section):
    listen: Address = Address("127.0.0.1", 8080)  # address of the web pages, for the users of `registry.users`
    # URL that browsers use, if it is not that of `listen`: the name and the path prefix of a reverse proxy, such as
    # "https://ops.example.com/headrace"
    public_url: str = ""
    # number of reverse proxies in front of the console whose X-Forwarded-For, -Proto and -Host headers are trusted
    proxies: int = 0
    database_url: str = ""  # SQLAlchemy URL of sessions and actions; "" is SQLite in data_dir/console.db
    # loopback | network: addresses on which a console without `registry.users` may listen; there it shows names, counts
    # and verdicts, and permits no change
    allow_unauthenticated_from: str = "loopback"
    tls_certificate: str = ""  # PEM file of the server certificate with its chain; "" serves plain HTTP
    tls_key: str = ""  # PEM file of its unencrypted private key; "" if `tls_certificate` contains the key
    # issuer URL of an OpenID provider through which users may sign in; needs the extra console-oidc. `user_claim` and
    # `roles_claim` of the section registry name the claims
    oidc_issuer: str = ""
    oidc_client_id: str = ""  # id of the console at the provider
    oidc_client_secret_file: str = ""  # file that holds its secret; "" for a client without one
    oidc_scopes: str = "openid profile"  # scopes to request; one of them should add the claim with the roles


@dataclass(frozen=True, slots=True, repr=False)
class GatewaySettings(Section):
    listen: Address = Address("127.0.0.1", 8082)  # address of the HTTP gateway, for the users of `registry.users`
    # loopback | network: addresses on which a gateway without `registry.users` may listen
    allow_unauthenticated_from: str = "loopback"
    tls_certificate: str = ""  # PEM file of the server certificate with its chain; "" serves plain HTTP
    tls_key: str = ""  # PEM file of its unencrypted private key; "" if `tls_certificate` contains the key
    request_bytes_max: int = 16 * 1024 * 1024  # size of a request body after decompression; streams have no limit
    client_bytes_max: int = (
        64 * 1024 * 1024
    )  # size in memory of the bodies of one user, or without users one IP address
    # bytes of records, after decompression, that one user, or without users one IP address, may send per second to this
    # gateway; above it requests get 429 with Retry-After, and streams pause. 0 is no limit
    client_bytes_per_second_max: int = 0
    memory_bytes_max: int = 256 * 1024 * 1024  # size in memory of the bodies of all requests; above it they get 429
    message_bytes_max: int = 1_048_588  # size of one record; the limits of the topic and the brokers apply too
    # how long a record is sent again while the brokers do not acknowledge it; then the client gets error code 50003
    delivery_timeout: Duration = Duration(30_000)
    connections_max: int = 4096  # concurrent connections, including idle ones; above it requests get 503
    consumer_instances_max: int = 500  # consumer instances of all clients; above it requests for more get 429
    consumer_idle: Duration = Duration(300_000)  # a consumer instance is deleted after this time without a request
    json_records: str = "binary"  # binary | json: format of records of version 2 with Content-Type application/json
    access_log: str = ""  # file that receives one JSON line per request; "-" is standard error, "" is no log
    # reverse proxies in front of the gateway, as addresses or networks; their headers X-Forwarded-For and
    # X-Forwarded-Proto are trusted; with `peers`, also the addresses of all gateways
    proxies: tuple[str, ...] = ()
    # URL at which clients reach this gateway, distinct for each gateway; "" is made from `listen`
    url: str = ""
    # URLs of all gateways behind one balancer, with this one's: a gateway passes requests for consumer instances of
    # another one on to it
    peers: tuple[str, ...] = ()
    # compacted topic with the state of sessions; created for the first session
    sessions_topic: str = "__headrace-gateway-sessions"
    # partitions of that topic and of `ledger_topic` when they are created: sources and transactions are divided into as
    # many parts
    lanes: int = 16
    # topic that remembers committed transactions for a week; created for the first one
    ledger_topic: str = "__headrace-gateway-ledger"
    spool_bytes_max: int = 4 * 1024**3  # size on disk of chunks whose transactions are not committed, of all clients
    spool_client_bytes_max: int = 1024**3  # the same of one user, or without users one IP address
    transaction_expiry: Duration = Duration(3_600_000)  # a chunk that is not committed is deleted after this time
    # pattern of a log type = topic, for sessions without a topic. The first match counts; without one the topic has the
    # name of the log type
    log_types: Mapping[str, str] = field(default_factory=dict)
    # tables of name, topics, url and more: URLs to which messages are posted (docs/gateway.md)
    webhooks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class AlertsSettings(Section):
    webhook_urls: tuple[str, ...] = ()  # URLs that receive alerts in the form of Alertmanager's webhooks
    alertmanager_url: str = ""  # URL of an Alertmanager, which then groups, silences and routes the alerts
    notify: tuple[str, ...] = ()  # URLs of services that Apprise supports, such as slack://…; needs the extra notify
    repeat_interval: Duration = Duration(4 * 3_600_000)  # time after which an alert that still fires is sent again
    # labels that all alerts get, such as the name of the environment
    labels: Mapping[str, str] = field(default_factory=dict)
    # tables of kind, severity, hold, keep_firing: changes of the default rules, which `headrace alerts rules` lists
    rules: tuple[Mapping[str, Any], ...] = ()

    @property
    def has_targets(self) -> bool:
        """Whether alerts are sent anywhere."""
        return bool(self.webhook_urls or self.alertmanager_url or self.notify)


@dataclass(frozen=True, slots=True, repr=False)
class CompatSettings(Section):
    schemas: tuple[str, ...] = ()  # files, patterns and directories that are checked when the command names none
    types: tuple[str, ...] = ()  # files and directories of types that schemas use; they are not checked themselves
    allow_comments: bool = False  # whether comments in schema files are allowed, as in Avro Java
    against: tuple[str, ...] = ()  # baseline: git:REF[:path], git-tip:REF, registry, a URL, a directory, or files
    level: str = ""  # level of every schema; "" is the level of its subject in a registry, else BACKWARD
    all_versions: bool = False  # whether to compare with every earlier version, as the _TRANSITIVE levels do
    require_subject: bool = False  # whether a schema without an earlier version fails
    subject_strategy: str = "topic"  # topic | record | topic-record | file: how a file's subject is named
    # pattern of a path = subject; takes precedence over the strategy
    subjects: Mapping[str, str] = field(default_factory=dict)
    lints: tuple[str, ...] = ()  # lint rules to check, or all; NAME=error, =warning or =off
    suppressions: tuple[Mapping[str, Any], ...] = ()  # tables of rule, path, subject, field, reason, expires
    baseline: str = ""  # file of known findings, which do not fail the check


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path = Path("headrace-data")
    registry: RegistrySettings = RegistrySettings()
    broker: BrokerSettings = BrokerSettings()
    kafka: KafkaSettings = KafkaSettings()
    loader: LoaderSettings = LoaderSettings()
    hive: HiveSettings = HiveSettings()
    sql: SqlSettings = SqlSettings()
    audit: AuditSettings = AuditSettings()
    console: ConsoleSettings = ConsoleSettings()
    gateway: GatewaySettings = GatewaySettings()
    alerts: AlertsSettings = AlertsSettings()
    compat: CompatSettings = CompatSettings()
    spark: Mapping[str, str] = field(default_factory=lambda: types.MappingProxyType({"master": "local[*]"}))
    # `master` and any spark.* property without its prefix, passed through to Spark
    keys_from_working_directory: frozenset[str] = frozenset()
    # Keys set by the headrace.toml of the working directory, which may be untrusted, for example in a checkout.

    def masked(self) -> dict[str, dict[str, str] | str]:
        """Returns all settings as text, by section and key, with secrets masked."""
        shown: dict[str, dict[str, str] | str] = {}
        for section in dataclasses.fields(self):
            if section.name == "keys_from_working_directory":
                continue
            value = getattr(self, section.name)
            if isinstance(value, Section):
                shown[section.name] = value.masked()
            elif isinstance(value, Mapping):
                shown[section.name] = {
                    str(key): mask_value(f"{section.name}.{key}", item) for key, item in value.items()
                }
            else:
                shown[section.name] = str(value)
        return shown

    def shown(self) -> dict[str, str]:
        """Returns all settings as text by dotted key, with secrets masked."""
        found: dict[str, str] = {}
        for section, value in self.masked().items():
            if isinstance(value, Mapping):
                found |= {f"{section}.{name}": text for name, text in value.items()}
            else:
                found[section] = value
        return found

    def __repr__(self) -> str:
        return f"Settings({self.masked()})"


CHOICES: Mapping[str, tuple[str, ...]] = {
    "registry.compatibility": (
        "NONE",
        "BACKWARD",
        "BACKWARD_TRANSITIVE",
        "FORWARD",
        "FORWARD_TRANSITIVE",
        "FULL",
        "FULL_TRANSITIVE",
    ),
    "registry.api_profile": ("7", "8"),
    "registry.rule_sets": ("keep", "drop"),
    "registry.mode_changes": ("allow", "refuse"),
    "registry.allow_unauthenticated_from": ("loopback", "network"),
    "broker.allow_unauthenticated_from": ("loopback", "network"),
    "sql.allow_unauthenticated_from": ("loopback", "network"),
    "console.allow_unauthenticated_from": ("loopback", "network"),
    "gateway.allow_unauthenticated_from": ("loopback", "network"),
    "gateway.json_records": ("binary", "json"),
    "broker.fsync": ("none", "interval", "always"),
    "broker.on_corruption": ("fail", "rename"),
    "kafka.security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "kafka.sasl_mechanism": ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
    "loader.partition_by": ("hour", "day", "auto"),
    "loader.codec": ("null", "deflate", "snappy"),
    "loader.kafka_column": ("none", "position", "full"),
    "loader.on_data_loss": ("fail", "skip"),
    "loader.corrupt_batches": ("fail", "quarantine", "skip"),
    "loader.future_records": ("own_time", "clamp"),
    "hive.server_auth": ("NONE", "NOSASL", "LDAP", "CUSTOM", "KERBEROS"),
    "compat.subject_strategy": ("topic", "record", "topic-record", "file"),
}
"""The permitted values of enumerated settings."""

TOPIC_KEYS = (
    "subject",
    "time_fields",
    "partition_by",
    "kafka_column",
    "codec",
    "quarantine_ratio_max",
    "on_data_loss",
    "record_bytes_max",
    "corrupt_batches",
    "future_records",
    "future_max",
    "retention_days",
    "compact",
    "compact_after",
)
"""Keys of `loader` that a `[[loader.topic]]` may contain."""

PATTERNS = frozenset({"loader.topics_include", "loader.topics_exclude", "audit.counted_topics"})
"""Settings that are regular expressions."""

AT_LEAST: Mapping[str, int | Duration] = {
    "registry.request_bytes_max": 1024,
    "registry.database_connections": 1,
    "broker.connections_per_address_max": 0,
    "broker.bytes_per_second_max": 0,
    "broker.advertised_port": 0,
    "broker.node_id": 0,
    "broker.consumer_session_timeout": Duration(1),
    "broker.consumer_heartbeat_interval": Duration(1),
    "broker.partitions": 1,
    "broker.segment_bytes_max": 1024 * 1024,
    "broker.message_bytes_max": 1024,
    "console.proxies": 0,
    "gateway.request_bytes_max": 1024,
    "gateway.client_bytes_max": 1024,
    "gateway.client_bytes_per_second_max": 0,
    "gateway.memory_bytes_max": 1024,
    "gateway.message_bytes_max": 1024,
    "gateway.delivery_timeout": Duration(1000),
    "gateway.connections_max": 1,
    "gateway.lanes": 1,
    "gateway.consumer_instances_max": 0,
    "gateway.consumer_idle": Duration(1000),
    "loader.tasks": 0,
    "loader.file_bytes_target": 1024 * 1024,
    "loader.range_bytes_max": 1024 * 1024,
    "loader.retention_days": 0,
    "loader.record_bytes_max": 64 * 1024,
    "hive.literal_chars_max": 1024,
    "audit.retention": Duration(86_400_000),
    "alerts.repeat_interval": Duration(60_000),
}

AT_MOST: Mapping[str, int | Duration] = {
    "console.proxies": 10,
    "gateway.message_bytes_max": 64 * 1024 * 1024,  # the same as for `broker.message_bytes_max`
    "gateway.delivery_timeout": Duration(3_600_000),
    "gateway.lanes": 1_000,
    "broker.advertised_port": 65535,
    "broker.node_id": (1 << 31) - 1,  # int32 in every response
    "broker.partitions": 10_000,  # the broker's limit
    "broker.segment_bytes_max": (1 << 31) - 1,  # an index entry has 32 bits for a file position
    "broker.message_bytes_max": 64 * 1024 * 1024,  # the same as for `max.message.bytes` of a topic
    "broker.session_timeout_min": Duration(1_800_000),  # the longest session timeout that a member may request
    "broker.consumer_session_timeout": Duration(24 * 86_400_000),  # int32 milliseconds
    "broker.consumer_heartbeat_interval": Duration(24 * 86_400_000),
}
