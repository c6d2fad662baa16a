"""Every setting, by section, with its default, unit and reason."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.settings.masking import masked
from headrace.settings.values import Address, Duration


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """The settings of a room; its name says which."""

    def masked(self) -> dict[str, str]:
        """All values as text for people, with passwords hidden."""
        section = type(self).__name__.removesuffix("Settings").lower()
        return {key.name: masked(f"{section}.{key.name}", getattr(self, key.name)) for key in dataclasses.fields(self)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.masked()})"


@dataclass(frozen=True, slots=True, repr=False)
class RegistrySettings(Section):
    listen: Address = Address("127.0.0.1", 8081)
    database_url: str = ""  # SQLAlchemy URL; "" is SQLite in data_dir/registry.db
    database_connections: int = 10  # of each process to PostgreSQL at most; looks at revisions and ids take two more
    url: str = ""  # for clients; several by comma, first preferred; "": a live `headrace up` on data_dir, else `listen`
    client_user: str = ""  # with which producers, consumers, load and audit go to the registry; "": with none
    client_password: str = ""  # of that user
    client_token: str = ""  # bearer token, instead of a user
    client_token_file: str = ""  # file that holds the bearer token and is read before every request
    client_ca: str = ""  # PEM file of the authorities to trust on https; "": those of the system
    client_certificate: str = ""  # PEM file of the certificate to show on https
    client_key: str = ""  # PEM file of its key; "": the key is in `client_certificate`
    client_key_password: str = ""  # of an encrypted key
    client_hosts: tuple[
        str, ...
    ] = ()  # that may get these where only the working directory's headrace.toml names the URL
    client_timeout: Duration = Duration(10_000)  # of a connection attempt and of each wait for an answer
    compatibility: str = "BACKWARD"  # level of subjects that have none of their own
    api_profile: int = 8  # release of the Confluent Schema Registry whose bodies are answered; 7 for clients before 7.0
    rule_sets: str = (
        "keep"  # keep | drop: rule sets in requests; dropped, as by the community edition, they change no id
    )
    mode_changes: str = "allow"  # allow | refuse: whether clients may change modes, as READONLY and IMPORT are
    request_bytes_max: int = 4 * 1024 * 1024  # body of one request; its schema may have half as many characters
    workers: int = 1  # processes that serve; more than the cores that they may use does not help
    users: str = ""  # file of users and what each may do; "": whoever reaches the registry may do everything
    allow_unauthenticated_from: str = "loopback"  # loopback | network: where a registry without `users` may listen
    tls_certificate: str = ""  # PEM file of the certificate, with its chain, that is served with; "": plain HTTP
    tls_key: str = ""  # PEM file of its key, not encrypted; "": the key is in `tls_certificate`
    tls_client_listen: str = ""  # host:port where clients show certificates, by which `users` knows them; "": nowhere
    tls_client_ca: str = ""  # PEM file of the authorities whose client certificates are believed there
    token_keys: str = ""  # file or URL of the JSON Web Key Set that bearer tokens are signed with; "": none are taken
    token_issuer: str = ""  # claim `iss` that tokens must have
    token_audience: str = ""  # that must be in their claim `aud`
    user_claim: str = "sub"  # claim that names the user
    roles_claim: str = "roles"  # claim with the roles that `users` grants something to; a.b is b within a
    requests_per_second_max: int = 0  # of one client to one worker, ten seconds' worth at once; 0: any number
    access_log: str = ""  # file that gets a line of JSON for each request; "-" is standard error, "" no log
    audit_log: str = ""  # file that gets a line of JSON for each change and who made it; "-" and "" as before


@dataclass(frozen=True, slots=True, repr=False)
class BrokerSettings(Section):
    listen: Address = Address("127.0.0.1", 9092)
    advertised_host: str = ""  # name or address that clients are told; "": that of `listen`
    advertised_port: int = 0  # port that clients are told; 0: the one that is listened on
    tls_certificate: str = ""  # PEM file of the certificate, with its chain, that is served with; "": no TLS
    tls_key: str = ""  # PEM file of its key, not encrypted; "": the key is in `tls_certificate`
    tls_client_ca: str = ""  # PEM file of the authorities whose certificates clients must show; "": they show none
    metrics_listen: str = ""  # host:port where GET /metrics answers Prometheus, whoever asks; "": nowhere
    users: str = ""  # file of users and what each may do; "": whoever reaches the broker may do everything
    allow_unauthenticated_from: str = (
        "loopback"  # loopback | network: where a broker with neither `users` nor `tls_client_ca` may listen
    )
    connections_per_address_max: int = 0  # at once from one address; 0: any number
    bytes_per_second_max: int = 0  # that one user, or without users one address, may send and be sent; 0: any number
    partitions: int = 4  # of a topic created by its first message
    retention: Duration = Duration(7 * 86_400_000)  # by record timestamp, like Kafka's retention.ms
    segment_bytes_max: int = 1024 * 1024 * 1024  # of one log file; retention deletes whole files
    message_bytes_max: int = 1_048_588  # one record batch, Kafka's default
    fsync: str = "interval"  # none | interval | always: when appended batches are forced to disk
    auto_create_topics: bool = True  # whether a topic that a client asks for by name is created
    rebalance_delay: Duration = Duration(0)  # how long the first members of an empty group wait for others; Kafka: 3s
    session_timeout_min: Duration = Duration(6000)  # that a member of a group may ask for
    consumer_session_timeout: Duration = Duration(45_000)  # of members by group.protocol=consumer
    consumer_heartbeat_interval: Duration = Duration(5000)  # of members by group.protocol=consumer, who learn by it
    node_id: int = 1  # of the one broker, as clients see it
    on_corruption: str = "fail"  # fail | rename: at startup, what to do with a corrupt segment that had been fsynced


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings(Section):
    bootstrap_servers: str = ""  # host:port,…; "" is a live `headrace up` on the same data_dir, else broker.listen
    security_protocol: str = "PLAINTEXT"  # PLAINTEXT | SSL | SASL_PLAINTEXT | SASL_SSL, as Kafka calls them
    ca: str = ""  # PEM file of the authorities to trust with TLS; "": those of the system
    certificate: str = ""  # PEM file of the certificate to show with TLS
    key: str = ""  # PEM file of its key; "": the key is in `certificate`
    key_password: str = ""  # of an encrypted key
    key_password_file: str = ""  # file that holds that password
    sasl_mechanism: str = ""  # PLAIN | SCRAM-SHA-256 | SCRAM-SHA-512 | OAUTHBEARER | GSSAPI
    user: str = ""  # that logs in with PLAIN or SCRAM
    password: str = ""  # of that user
    password_file: str = ""  # file that holds the password
    token_file: str = ""  # file that holds the token for OAUTHBEARER
    kerberos_service: str = "kafka"  # first part of the brokers' principals, for GSSAPI


@dataclass(frozen=True, slots=True)
class TopicTable:
    """One `[[loader.topic]]`: for the topics whose whole name `pattern` matches, keys of `loader` by name."""

    pattern: str
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class LoaderSettings(Section):
    warehouse: str = ""  # directory or file://, hdfs:// or s3a:// URI; "" is data_dir/warehouse
    state: str = ""  # the same for the decision log; "" is _headrace in the warehouse
    tasks: int = 0  # size of the fixed pool; 0 is the number of cores
    interval: Duration = Duration(600_000)  # between the scheduled loads of `headrace up`, aligned to the clock
    spark_idle_timeout: Duration = Duration(
        1_800_000
    )  # for how long `up` keeps the Spark of a load for the next; 0s: not
    partition_by: str = "hour"  # hour (dt and hr) | day (dt alone)
    topics_include: tuple[str, ...] = (".*",)  # regular expressions matched against whole topic names
    topics_exclude: tuple[str, ...] = ()  # applied after include; `__*` and `_schemas` are always left out
    time_fields: tuple[str, ...] = ("header.time", "timestamp")  # the first that exists gives the message time
    subject: str = "{topic}-value"  # registry's subject of a topic's values; {topic} is the topic's name
    codec: str = "snappy"  # Avro codec of the files: null | deflate | snappy
    file_bytes_target: int = 256 * 1024 * 1024  # a partition is split over tasks only above this
    range_bytes_max: int = 4 * 1024 * 1024 * 1024  # cap of what one run reads from one partition
    kafka_column: str = "position"  # none | position | full: what each row says of where it came from
    quarantine_ratio_max: float = 0.1  # of a topic's messages in a run; over it exit 1, over 100 too: not loaded
    on_data_loss: str = "fail"  # fail | skip: when offsets vanished unread, or the log is not the one read
    record_bytes_max: int = 64 * 1024 * 1024  # what one batch may unfold to; a larger one is taken for corrupt
    corrupt_batches: str = "fail"  # fail | quarantine | skip: what becomes of a batch that cannot be read
    future_records: str = "own_time"  # own_time | clamp: which day a message of the future is filed under, see below
    future_max: Duration = Duration(86_400_000)  # how far after its arrival a message may be dated before it is clamped
    staging_age: Duration = Duration(7 * 86_400_000)  # undecided staging older than this is offered for cleaning
    retention_days: int = 0  # whole days that `retain` keeps of a topic after the end of a day; 0 keeps all
    compact: bool = False  # whether `compact` without topics takes the topic
    compact_after: Duration = Duration(21_600_000)  # how long after its end a bucket is left to late messages
    run_log: str = ""  # file that gets a line of JSON for each load; "" is data_dir/logs/runs.jsonl, "off" no log
    topic: tuple[TopicTable, ...] = ()  # tables of keys for some topics, see below

    def of_topic(self, topic: str) -> LoaderSettings:
        """The settings in force for one topic: of each key, what the first table says that matches and has it."""
        given: dict[str, Any] = {}
        for table in self.topic:
            if re.fullmatch(table.pattern, topic):
                given = {**table.given, **given}
        return dataclasses.replace(self, **given) if given else self

    def subject_of(self, topic: str) -> str:
        """The registry's subject of a topic's values."""
        return self.of_topic(topic).subject.replace("{topic}", topic)


@dataclass(frozen=True, slots=True, repr=False)
class HiveSettings(Section):
    database: str = "headrace"
    metastore: str = ""  # thrift://host:port; "" is a live `headrace up` on the same data_dir, else Derby in data_dir
    listen: Address = Address("127.0.0.1", 9083)  # metastore endpoint served by `headrace up`
    memory: str = "1g"  # most that the JVM of this metastore takes for its objects, as Java's -Xmx is given
    executor: str = "spark"  # spark: metastore client | hive://host:port: HiveServer2, Spark Thrift Server | print
    server_auth: str = "NONE"  # of hive://…: NONE | NOSASL | LDAP | CUSTOM | KERBEROS, as the server has it
    server_user: str = ""  # that logs in there; "" is the user of the process
    server_password: str = ""  # of that user, for LDAP and CUSTOM
    server_password_file: str = ""  # file that holds the password
    server_kerberos_service: str = "hive"  # first part of the server's principal, for KERBEROS
    literal_chars_max: int = 30_000  # a longer table schema goes to avro.schema.url
    latest_views: bool = False  # loads keep the view <table>_latest, the newest schema's fields alone, in Spark's SQL
    column_comments: bool = True  # a field's doc is its column's comment; off where a metastore cannot hold all letters


@dataclass(frozen=True, slots=True, repr=False)
class SqlSettings(Section):
    listen: Address | None = (
        None  # SQL endpoint served by `headrace up`; None is off, since whoever reaches it runs code
    )
    memory: str = "1g"  # for the queries of `headrace up` together; beyond it SQL alone ends, and starts again


@dataclass(frozen=True, slots=True, repr=False)
class AuditSettings(Section):
    grace: Duration = Duration(1_800_000)  # after a window's end before a missing count is called short
    topic: str = "headrace.audit"  # where producers and consumers publish their counts
    counted_topics: tuple[str, ...] = ()  # patterns of topics all of whose producers count: more than sent is surplus
    findings_ttl: Duration = Duration(30 * 86_400_000)  # after the last count of a window a finding in it is past


@dataclass(frozen=True, slots=True, repr=False)
class CompatSettings(Section):
    schemas: tuple[str, ...] = ()  # files, patterns and directories that are checked when the command names none
    types: tuple[str, ...] = ()  # files and directories of types that schemas use, which are not checked themselves
    allow_comments: bool = False  # comments in schema files are read past, as Avro Java does
    against: tuple[str, ...] = ()  # baseline: git:REF[:path], git-tip:REF, registry, a URL, a directory, or files
    level: str = ""  # a level for all; "": the subject's own in a registry, else BACKWARD
    all_versions: bool = False  # compare with every earlier version, as the _TRANSITIVE levels do
    require_subject: bool = False  # a schema without an earlier version fails
    subject_strategy: str = "topic"  # topic | record | topic-record | file: how a file's subject is named
    subjects: Mapping[str, str] = field(default_factory=dict)  # pattern of a path = subject, before the strategy
    lints: tuple[str, ...] = ()  # rules beyond compatibility that are asked for, or all; NAME=error, =warning or =off
    suppressions: tuple[Mapping[str, Any], ...] = ()  # tables of rule, path, subject, field, reason, expires
    baseline: str = ""  # file of known findings that do not count


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
    compat: CompatSettings = CompatSettings()
    spark: Mapping[str, str] = field(default_factory=lambda: types.MappingProxyType({"master": "local[*]"}))
    # `master`, and any spark.* property without its prefix, passed through to Spark
    keys_from_working_directory: frozenset[str] = frozenset()
    # Keys whose values come from the working directory's own file, which may be anybody's: a checkout has one.

    def masked(self) -> dict[str, dict[str, str] | str]:
        """All values as text for people, with passwords hidden."""
        shown: dict[str, dict[str, str] | str] = {}
        for section in dataclasses.fields(self):
            if section.name == "keys_from_working_directory":
                continue
            value = getattr(self, section.name)
            if isinstance(value, Section):
                shown[section.name] = value.masked()
            elif isinstance(value, Mapping):
                shown[section.name] = {str(key): masked(f"{section.name}.{key}", item) for key, item in value.items()}
            else:
                shown[section.name] = str(value)
        return shown

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
    "broker.fsync": ("none", "interval", "always"),
    "broker.on_corruption": ("fail", "rename"),
    "kafka.security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "kafka.sasl_mechanism": ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
    "loader.partition_by": ("hour", "day"),
    "loader.codec": ("null", "deflate", "snappy"),
    "loader.kafka_column": ("none", "position", "full"),
    "loader.on_data_loss": ("fail", "skip"),
    "loader.corrupt_batches": ("fail", "quarantine", "skip"),
    "loader.future_records": ("own_time", "clamp"),
    "hive.server_auth": ("NONE", "NOSASL", "LDAP", "CUSTOM", "KERBEROS"),
    "compat.subject_strategy": ("topic", "record", "topic-record", "file"),
}
"""Settings that take one of a few words."""

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
"""Keys of `loader` that a `[[loader.topic]]` may give."""

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
    "loader.tasks": 0,
    "loader.file_bytes_target": 1024 * 1024,
    "loader.range_bytes_max": 1024 * 1024,
    "loader.retention_days": 0,
    "loader.record_bytes_max": 64 * 1024,
    "hive.literal_chars_max": 1024,
}

AT_MOST: Mapping[str, int | Duration] = {
    "broker.advertised_port": 65535,
    "broker.node_id": (1 << 31) - 1,  # 32 bits in every answer
    "broker.partitions": 10_000,  # what the broker lets a topic have
    "broker.segment_bytes_max": (1 << 31) - 1,  # an index has 32 bits for a position
    "broker.message_bytes_max": 64 * 1024 * 1024,  # as `max.message.bytes` of a topic
    "broker.session_timeout_min": Duration(1_800_000),  # the longest that a member may ask for
    "broker.consumer_session_timeout": Duration(24 * 86_400_000),  # 32 bits of milliseconds
    "broker.consumer_heartbeat_interval": Duration(24 * 86_400_000),
}
