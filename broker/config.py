"""What a broker is started with. The room reads neither files nor the environment: the front door fills this in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FsyncMode(StrEnum):
    """When appended batches are forced to disk. In every mode an acknowledged batch survives `kill -9`."""

    NONE = "none"  # when the system likes; segments are still forced when they are rolled
    INTERVAL = "interval"  # every `flush_interval_ms`
    ALWAYS = "always"  # before the acknowledgement; one call covers all batches that wait for it


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Sizes are in bytes. `data_dir` is the broker's own directory."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""  # that clients are told; "" is `host`
    advertised_port: int = 0  # that clients are told; 0 is the port that is listened on
    tls_certificate: str = ""  # PEM file; "" serves without TLS
    tls_key: str = ""  # PEM file, not encrypted; "": the key is in `tls_certificate`
    tls_client_ca: str = ""  # PEM file of the authorities whose certificates clients must show; "": they show none
    metrics_host: str = ""  # where /metrics is served; "": nowhere
    metrics_port: int = 0  # 0 takes a free one
    users: str = ""  # file of users and what each may do; "": whoever reaches the broker may do everything
    connections_per_address_max: int = 0  # 0: any number
    bytes_per_second_max: int = 0  # that one user, or one address, may send and be sent; 0: any number
    node_id: int = 1
    partitions: int = 4  # of a topic created by its first message
    creates_topics: bool = True  # that a client asks for by name and that are not there
    retention_ms: int = 7 * 86_400_000
    segment_bytes_max: int = 1 << 30
    message_bytes_max: int = 1_048_588
    fsync: FsyncMode = FsyncMode.INTERVAL
    flush_interval_ms: int = 1000  # of unforced data at most this much is lost with the power
    sets_damaged_aside: bool = False  # what is damaged of logs that had been forced to disk; else it stops the start
    rebalance_delay_ms: int = 0  # how long the first members of an empty group wait for others
    session_timeout_ms_min: int = 6000  # that a member of a group may ask for
    consumer_session_timeout_ms: int = 45_000  # after which a silent member of a consumer group (KIP-848) is let go
    consumer_heartbeat_interval_ms: int = 5000  # that members of consumer groups are told
    housekeeping_interval_ms: int = 30_000  # between looks for what retention lets go
    cleaner_interval_ms: int = 15_000  # between looks for what is to be compacted
