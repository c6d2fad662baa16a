"""The configuration of a broker. The package `broker` reads it neither from settings files nor from the environment;
the command line sets the values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FsyncMode(StrEnum):
    """When appended batches are fsynced. In every mode an acknowledged batch survives `kill -9`; a power failure may
    lose batches that are not fsynced."""

    NONE = "none"  # the operating system decides; a segment is fsynced when it is closed
    INTERVAL = "interval"  # every `flush_interval_ms`
    ALWAYS = "always"  # before the acknowledgement; one fsync covers all waiting batches


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of one broker. Sizes are in bytes; `data_dir` is used by this broker alone."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""  # host that clients connect to; "" is `host`
    advertised_port: int = 0  # port that clients connect to; 0 is the listening port
    tls_certificate: str = ""  # PEM file; "" disables TLS
    tls_key: str = ""  # PEM file, unencrypted; "": `tls_certificate` contains the key
    tls_client_ca: str = ""  # PEM file of CAs; clients need a certificate of one of them; "": no certificate
    metrics_host: str = ""  # host on which /metrics is served; "" disables it
    metrics_port: int = 0  # 0 takes a free port
    users: str = ""  # file of users and their permissions; "": every client has all permissions
    connections_per_address_max: int = 0  # 0 is unlimited
    # sent and received bytes per user, or per address of anonymous clients; 0 is unlimited
    bytes_per_second_max: int = 0
    node_id: int = 1
    partitions: int = 4  # partitions of an automatically created topic
    auto_create_topics: bool = True  # create a missing topic that a metadata request names
    retention_ms: int = 7 * 86_400_000
    segment_bytes_max: int = 1 << 30
    message_bytes_max: int = 1_048_588
    fsync: FsyncMode = FsyncMode.INTERVAL
    flush_interval_ms: int = 1000  # with fsync `interval`, a power failure loses at most the batches of this period
    repairs_corrupt_logs: bool = False  # repair logs with corrupt fsynced data; False: the start fails
    rebalance_delay_ms: int = 0  # wait of an empty group for more members after the latest one has joined
    session_timeout_ms_min: int = 6000  # shortest session timeout that a group member may request
    consumer_session_timeout_ms: int = 45_000  # session timeout of members of consumer groups (KIP-848)
    consumer_heartbeat_interval_ms: int = 5000  # heartbeat interval for members of consumer groups
    housekeeping_interval_ms: int = 30_000  # interval of retention
    cleaner_interval_ms: int = 15_000  # interval of compaction
