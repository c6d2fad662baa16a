"""State machine of consumer groups (KIP-848), tested with heartbeats and explicit times."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.coordinator.assignors import ASSIGNORS, SubscribedTopic, TopicIdPartition
from headrace.broker.coordinator.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
)
from headrace.broker.coordinator.consumer_members import MemberState
from headrace.broker.coordinator.consumer_messages import SUBSCRIPTION_TOPICS_MAX, HeartbeatRequest, HeartbeatResult
from headrace.broker.coordinator.consumer_records import (
    ConsumerKey,
    StoredGroup,
    consumer_entry,
    keys_of,
    unstored_entries,
)
from headrace.broker.coordinator.group import MEMBERS_MAX, NAME_CHARS_MAX
from headrace.broker.coordinator.records import decode_key
from headrace.broker.coordinator.table import TableEntry
from headrace.broker.coordinator.topic_patterns import matching_topics
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode
from support.cases import all_cases

SESSION_MS, REBALANCE_MS = 45_000, 30_000
Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Topic:
    topic_id: uuid.UUID
    partitions: int


class FakeTopicCatalog:
    def __init__(self, **counts: int) -> None:
        self.changes = 0
        self._topics: dict[str, Topic] = {}
        for name, count in counts.items():
            self.put(name, count)

    def put(self, name: str, count: int) -> None:
        """Creates a topic, or adds partitions."""
        present = self._topics.get(name)
        self._topics[name] = replace(present, partitions=count) if present else Topic(uuid.uuid4(), count)
        self.changes += 1

    def drop(self, name: str) -> None:
        del self._topics[name]
        self.changes += 1

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def names(self) -> Iterable[str]:
        return self._topics

    def all(self, *names: str) -> Partitions:
        found = (self._topics[name] for name in names)
        return frozenset((topic.topic_id.bytes, index) for topic in found for index in range(topic.partitions))


@dataclass(slots=True)
class Client:
    """A consumer that releases the partitions missing from a response, and reports that in its next heartbeat."""

    driver: Driver
    member_id: str
    topics: tuple[str, ...] = ("t",)
    instance_id: str | None = None
    pattern: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: Partitions = NO_PARTITIONS

    def join(self, at: int = 0) -> HeartbeatResult:
        self.epoch, self.owned = 0, NO_PARTITIONS
        return self.heartbeat(at, full=True)

    def heartbeat(self, at: int = 0, *, full: bool = False, loses_response: bool = False, silent: bool = False) -> Any:
        """Sends a heartbeat: with all fields if `full`, without owned partitions if `silent`."""
        fields: dict[str, Any] = {}
        if full:
            fields = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topics": frozenset(self.topics),
                "pattern": self.pattern,
                "assignor": self.assignor,
            }
        request = HeartbeatRequest(
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            owned=None if silent else self.owned,
            **fields,
        )
        result = self.driver.heartbeat(request, at)
        if not loses_response:
            self.epoch = result.epoch
            self.owned = self.owned if result.assigned is None else result.assigned
        return result

    def leave(self, epoch: int = -1) -> HeartbeatResult:
        return self.driver.heartbeat(HeartbeatRequest(self.member_id, epoch, instance_id=self.instance_id), 0)


@dataclass(slots=True)
class Driver:
    """A group together with its stored records."""

    topics: FakeTopicCatalog
    group: ConsumerGroup = field(default_factory=lambda: ConsumerGroup("g", SESSION_MS))
    log: list[TableEntry] = field(default_factory=list)

    def client(self, member_id: str, **more: Any) -> Client:
        return Client(self, member_id, **more)

    def heartbeat(self, request: HeartbeatRequest, at: int) -> HeartbeatResult:
        result = self.group.heartbeat(request, self.topics, at)
        self.store()
        return result

    def tick(self, at: int) -> None:
        self.group.tick(at)
        self.store()

    def store(self) -> None:
        self.log += unstored_entries(self.group, 7)
        self.group.unstored.clear()

    def restart(self, at: int) -> None:
        self.group = restored(self.log, at)

    def heartbeat_until_stable(self, clients: Iterable[Client], at: int = 0) -> None:
        """Sends heartbeats of all clients until nothing changes."""
        everybody = list(clients)
        for _ in range(10):
            before = (self.group.epoch, [(client.epoch, client.owned) for client in everybody])
            for client in everybody:
                client.heartbeat(at)
            if before == (self.group.epoch, [(client.epoch, client.owned) for client in everybody]):
                return
        raise AssertionError("the group does not come to rest")


def stored_in(log: Iterable[TableEntry]) -> StoredGroup:
    stored = StoredGroup()
    for raw_key, value in log:
        key = decode_key(raw_key)
        assert isinstance(key, ConsumerKey)
        stored.apply(key, value)
    return stored


def restored(log: Iterable[TableEntry], at: int) -> ConsumerGroup:
    stored = stored_in(log)
    group = ConsumerGroup("g", SESSION_MS)
    group.epoch, group.target_epoch, group.target = stored.epoch, stored.target_epoch, stored.target
    group.restore(stored.merged_members(), at)
    return group


def pair(**topics: int) -> tuple[Driver, Client, Client]:
    """Returns two members that share the partitions."""
    driver = Driver(FakeTopicCatalog(**(topics or {"t": 4})))
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    driver.heartbeat_until_stable([first, second])
    return driver, first, second


def refusal(call: Any, *arguments: Any, **more: Any) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        call(*arguments, **more)
    return refused.value.code


def test_single_member_gets_all_partitions_at_once() -> None:
    driver = Driver(FakeTopicCatalog(t=3))
    result = driver.client("a").join()
    assert (result.epoch, result.assigned) == (1, driver.topics.all("t"))
    assert driver.group.state is ConsumerGroupState.STABLE


def test_partition_is_released_before_reassignment() -> None:
    driver = Driver(FakeTopicCatalog(t=4))
    first, second = driver.client("a"), driver.client("b")
    first.join()
    result = second.join()
    assert (result.epoch, result.assigned, driver.group.state) == (2, NO_PARTITIONS, ConsumerGroupState.RECONCILING)
    result = first.heartbeat()
    assert (result.epoch, len(result.assigned)) == (1, 2)
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert second.heartbeat().assigned is None, "the first one has not said yet that it has given them up"
    assert first.heartbeat().epoch == 2
    assert len(second.heartbeat().assigned) == 2
    assert first.owned | second.owned == driver.topics.all("t")
    assert driver.group.state is ConsumerGroupState.STABLE


def test_heartbeat_without_owned_partitions_releases_nothing() -> None:
    driver = Driver(FakeTopicCatalog(t=4))
    first, second = driver.client("a"), driver.client("b")
    first.join()
    second.join()
    first.heartbeat(silent=True)
    first.heartbeat(silent=True)
    assert second.heartbeat().assigned is None
    assert first.heartbeat().epoch == 2


def test_third_member_takes_only_its_share() -> None:
    driver, first, second = pair(t=9)
    before = first.owned, second.owned
    third = driver.client("c")
    third.join()
    driver.heartbeat_until_stable([first, second, third])
    assert [len(each.owned) for each in (first, second, third)] == [3, 3, 3]
    assert first.owned < before[0]
    assert second.owned < before[1]


def test_partitions_of_leaving_member_are_free_at_once() -> None:
    driver, first, second = pair()
    assert second.leave().epoch == -1
    assert driver.group.state is ConsumerGroupState.ASSIGNING
    assert first.heartbeat().assigned == driver.topics.all("t")
    assert refusal(second.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID
    first.leave()
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_wrong_member_epoch_is_fenced() -> None:
    driver, first, _ = pair()
    for epoch in (first.epoch + 1, first.epoch - 1):
        request = HeartbeatRequest("a", epoch)
        assert refusal(driver.group.heartbeat, request, driver.topics, 0) is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.heartbeat().epoch == first.epoch


def test_previous_member_epoch_is_accepted_after_lost_response() -> None:
    driver, first, second = pair()
    second.leave()
    before = first.epoch
    first.heartbeat(loses_response=True)
    assert first.epoch == before < driver.group.members["a"].epoch
    assert first.heartbeat(full=True).assigned == driver.topics.all("t")
    assert first.epoch == driver.group.epoch


def test_rejoining_member_gets_its_assignment() -> None:
    driver, first, second = pair()
    before = first.owned
    assert first.join().assigned == before
    driver.heartbeat_until_stable([first, second])
    assert first.owned == before


@pytest.mark.parametrize(
    ("fields", "is_full"),
    [
        ({"rebalance_timeout_ms": REBALANCE_MS, "topics": frozenset("t"), "owned": NO_PARTITIONS}, True),
        ({"rebalance_timeout_ms": REBALANCE_MS, "pattern": "t", "owned": NO_PARTITIONS}, True),
        ({"rebalance_timeout_ms": REBALANCE_MS, "owned": NO_PARTITIONS}, False),
        ({"rebalance_timeout_ms": REBALANCE_MS, "topics": frozenset("t")}, False),
        ({"topics": frozenset("t"), "owned": NO_PARTITIONS}, False),
    ],
)
def test_full_heartbeat_gets_full_response(fields: dict[str, Any], is_full: bool) -> None:
    driver = Driver(FakeTopicCatalog(t=2))
    member = driver.client("a")
    member.join()
    result = driver.heartbeat(HeartbeatRequest("a", member.epoch, **fields), 0)
    assert result.assigned == (driver.topics.all("t") if is_full else None)


def test_member_with_expired_session_must_rejoin() -> None:
    driver, first, second = pair()
    second.heartbeat(SESSION_MS - 1)
    assert driver.group.next_deadline_ms() == SESSION_MS
    driver.tick(SESSION_MS)
    assert set(driver.group.members) == {"b"}
    assert refusal(first.heartbeat, SESSION_MS) is ErrorCode.UNKNOWN_MEMBER_ID
    assert second.heartbeat(SESSION_MS).assigned == driver.topics.all("t")


def test_member_that_does_not_release_partitions_in_time_is_removed() -> None:
    driver, first, _ = pair()
    third = driver.client("c")
    third.join(at=1000)
    owned_before = first.owned
    first.heartbeat(1000)
    first.owned = owned_before
    for at in range(2000, 31_000, 5000):
        first.heartbeat(at, silent=True)
        third.heartbeat(at)
    assert driver.group.next_deadline_ms() == 1000 + REBALANCE_MS
    driver.tick(1000 + REBALANCE_MS)
    assert set(driver.group.members) == {"b", "c"}
    assert refusal(first.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID


def test_created_extended_and_deleted_topics_change_target() -> None:
    driver, first, second = pair(t=2)
    epoch = driver.group.epoch
    driver.topics.put("other", 3)
    driver.heartbeat_until_stable([first, second])
    assert driver.group.epoch == epoch, "no member reads this topic"
    driver.topics.put("t", 4)
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == driver.topics.all("t")
    driver.topics.drop("t")
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == NO_PARTITIONS
    driver.topics.put("t", 1)
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == driver.topics.all("t")
    assert driver.group.epoch > epoch


def test_changed_subscription_moves_partitions() -> None:
    driver, first, second = pair(t=2, u=2)
    first.topics = ("u",)
    first.heartbeat(full=True)
    driver.heartbeat_until_stable([first, second])
    assert (first.owned, second.owned) == (driver.topics.all("u"), driver.topics.all("t"))


def test_pattern_subscription_includes_new_topics() -> None:
    driver = Driver(FakeTopicCatalog(**{"shop.a": 1, "other": 1}))
    first, second = driver.client("a", topics=(), pattern=r"shop\..*"), driver.client("b", topics=("other",))
    first.join()
    second.join()
    assert first.owned == driver.topics.all("shop.a")
    driver.topics.put("shop.b", 2)
    second.heartbeat()
    driver.heartbeat_until_stable([first, second])
    assert first.owned == driver.topics.all("shop.a", "shop.b")
    assert refusal(driver.client("c", topics=(), pattern="(").join) is ErrorCode.INVALID_REGULAR_EXPRESSION
    for pattern, found in (("other", ("other",)), (r"shop\.b", ("shop.b",)), ("", ())):
        first.pattern = pattern
        first.heartbeat(full=True)
        driver.heartbeat_until_stable([first, second])
        assert first.owned | second.owned == driver.topics.all(*found, "other")
    assert first.owned == NO_PARTITIONS


def test_pattern_matches_only_permitted_topics() -> None:
    driver = Driver(FakeTopicCatalog(a=1, b=1))
    request = HeartbeatRequest(
        "m",
        0,
        rebalance_timeout_ms=1,
        topics=frozenset(),
        pattern=".",
        owned=NO_PARTITIONS,
        can_see_topic=lambda name: name == "b",
    )
    assert driver.heartbeat(request, 0).assigned == driver.topics.all("b")


def test_assignor_is_majority_preference() -> None:
    driver = Driver(FakeTopicCatalog(t=2, u=2))
    clients = [driver.client(name, topics=("t", "u"), assignor="range") for name in ("a", "b")]
    for client in clients:
        client.join()
    driver.heartbeat_until_stable(clients)
    assert driver.group.assignor == "range"
    assert {index for _, index in clients[0].owned} == {0}
    assert refusal(driver.client("c", assignor="sticky").join) is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_returning_static_member_causes_no_rebalance() -> None:
    driver, first, _ = pair(t=4)
    static = driver.client("s1", instance_id="i")
    static.join()
    driver.heartbeat_until_stable([first, static, driver_client(driver, "b")])
    replacement = driver.client("s2", instance_id="i")
    assert refusal(replacement.join) is ErrorCode.UNRELEASED_INSTANCE_ID
    before, epoch = static.owned, driver.group.epoch
    assert static.leave(-2).epoch == -2
    assert replacement.join().assigned == before
    assert driver.group.epoch == epoch
    assert refusal(static.heartbeat) is ErrorCode.FENCED_INSTANCE_ID
    assert set(driver.group.members) == {"a", "b", "s2"}
    driver.restart(0)
    assert (
        driver.client("s2", instance_id="i", epoch=replacement.epoch, owned=before).heartbeat().epoch
        == replacement.epoch
    )


def driver_client(driver: Driver, member_id: str) -> Client:
    """Returns the client of an existing member."""
    member = driver.group.members[member_id]
    return driver.client(member_id, epoch=member.epoch, owned=frozenset(member.assigned))


def test_absent_static_member_is_removed_after_session() -> None:
    driver = Driver(FakeTopicCatalog(t=1))
    static = driver.client("s", instance_id="i")
    static.join()
    static.leave(-2)
    driver.tick(SESSION_MS)
    assert driver.group.state is ConsumerGroupState.EMPTY
    assert driver.client("s2", instance_id="i").join(SESSION_MS).assigned == driver.topics.all("t")


def test_static_member_may_be_absent_during_broker_restart() -> None:
    driver = Driver(FakeTopicCatalog(t=1))
    static = driver.client("s", instance_id="i")
    static.join()
    static.leave(-2)
    driver.restart(0)
    assert driver.client("s2", instance_id="i").join().assigned == driver.topics.all("t")


def test_static_member_may_leave_permanently() -> None:
    driver = Driver(FakeTopicCatalog(t=1))
    static = driver.client("s", instance_id="i")
    static.join()
    unknown_member = HeartbeatRequest("x", -1, instance_id="i")
    assert refusal(driver.group.heartbeat, unknown_member, driver.topics, 0) is ErrorCode.FENCED_INSTANCE_ID
    static.leave()
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_refused_heartbeat_changes_nothing() -> None:
    with all_cases() as case:
        for change, code in [
            ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
            ({"epoch": 7}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
            ({"epoch": 7, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"topics": None}, ErrorCode.INVALID_REQUEST),
            ({"rebalance_timeout_ms": None}, ErrorCode.INVALID_REQUEST),
            ({"owned": None}, ErrorCode.INVALID_REQUEST),
            ({"owned": frozenset({(uuid.uuid4().bytes, 0)})}, ErrorCode.INVALID_REQUEST),
            ({"member_id": "x" * (NAME_CHARS_MAX + 1)}, ErrorCode.INVALID_REQUEST),
            ({"pattern": "x" * (NAME_CHARS_MAX + 1)}, ErrorCode.INVALID_REQUEST),
            ({"topics": frozenset(map(str, range(SUBSCRIPTION_TOPICS_MAX + 1)))}, ErrorCode.INVALID_REQUEST),
            ({"assignor": "none"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ]:
            with case(change):
                driver = Driver(FakeTopicCatalog(t=1))
                driver.client("a").join()
                request = HeartbeatRequest("m", 0, rebalance_timeout_ms=1, topics=frozenset("t"), owned=NO_PARTITIONS)
                assert refusal(driver.group.heartbeat, replace(request, **change), driver.topics, 0) is code
                assert set(driver.group.members) == {"a"}
                assert not driver.group.unstored
                assert driver.group.heartbeat(request, driver.topics, 0).epoch == 2


def test_group_size_is_limited() -> None:
    driver = Driver(FakeTopicCatalog(t=1))
    for number in range(MEMBERS_MAX):
        driver.client(str(number)).join()
    assert refusal(driver.client("one more").join) is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.client("5").join()


def test_offset_commit_and_fetch_check_member_epoch() -> None:
    driver, first, second = pair(t=2, u=2)
    group, topics = driver.group, driver.topics
    index = next(iter(first.owned))[1]
    partitions, epoch = [("t", index)], first.epoch
    group.check_commit("a", epoch, partitions, topics)
    assert refusal(group.check_commit, "a", epoch + 1, partitions, topics) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(group.check_commit, "x", epoch, partitions, topics) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group.check_commit, "", -1, partitions, topics) is ErrorCode.UNKNOWN_MEMBER_ID
    group.check_fetch(None, -1)
    group.check_fetch("a", epoch)
    assert refusal(group.check_fetch, "a", epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(group.check_fetch, "x", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    # Partitions owned since then may be committed with the previous epoch, newer ones may not.
    second.topics = ("t", "u")
    second.heartbeat(full=True)
    first.heartbeat(loses_response=True)
    assert first.epoch < group.members["a"].epoch
    group.check_commit("a", epoch, partitions, topics)
    assert refusal(group.check_commit, "a", epoch, [("u", 0)], topics) is ErrorCode.STALE_MEMBER_EPOCH
    first.leave()
    second.leave()
    group.check_commit("", -1, partitions, topics)
    assert refusal(group.check_commit, "", 0, partitions, topics) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_continue_their_epochs_after_restart() -> None:
    driver, first, second = pair()
    epoch = driver.group.epoch
    driver.restart(50_000)
    assert driver.group.state is ConsumerGroupState.STABLE
    assert driver.group.next_deadline_ms() == 50_000 + SESSION_MS
    for client in (first, second):
        result = client.heartbeat(50_001)
        assert (result.epoch, result.assigned) == (epoch, None)
    assert driver.group.epoch == epoch


def test_rebalance_continues_after_restart() -> None:
    driver = Driver(FakeTopicCatalog(t=4))
    first, second = driver.client("a"), driver.client("b", topics=(), pattern="t+")
    first.join()
    second.join()
    first.heartbeat()
    driver.restart(0)
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert second.heartbeat().assigned is None
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == driver.topics.all("t")
    assert not first.owned & second.owned


def test_topic_changes_during_restart_change_target() -> None:
    driver, first, second = pair(t=2)
    driver.restart(0)
    driver.topics.put("t", 3)
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == driver.topics.all("t")


def test_conflicting_members_after_log_loss_must_rejoin() -> None:
    driver, first, second = pair(t=2)
    step_of_first = next(at for at, (key, _) in enumerate(driver.log) if b"\0\10" in key and key.endswith(b"\1a"))
    driver.log = [entry for at, entry in enumerate(driver.log) if at <= step_of_first or not entry[0].endswith(b"\1a")]
    driver.restart(0)
    assert set(driver.group.members) == {"b"}
    assert refusal(first.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    driver.heartbeat_until_stable([first, second])
    assert first.owned | second.owned == driver.topics.all("t")


def test_consumer_group_records_have_kafkas_layout() -> None:
    """Kafka's group coordinator schemas: a key is the record kind and its fields; values have version 0."""
    driver = Driver(FakeTopicCatalog(t=2))
    driver.topics._topics["t"] = Topic(uuid.UUID(int=0xA), 2)
    driver.client("m", topics=("t",), instance_id="i", pattern="t", assignor="range").join()
    group, member = b"\0\1g", b"\0\1g\0\1m"
    topic_id = bytes(15) + b"\x0a"
    numbers, epochs = b"\3" + bytes(4) + bytes(3) + b"\1", b"\3" + b"\0\0\0\1" * 2
    assert dict(driver.log) == {
        # Epoch; tag 848002 of this broker: time of the last change.
        b"\0\3" + group: b"\0\0" + b"\0\0\0\1" + b"\1\x82\xe1\x33\x08" + bytes(7) + b"\7",
        # Instance id, rack (null), client id, client host, topics, pattern, timeout, assignor; tag 848001 of this
        # broker: matched topics.
        b"\0\5" + member: b"\0\0" + b"\2i" + b"\0" + b"\1" + b"\1" + b"\2\2t" + b"\2t" + b"\0\0\x75\x30" + b"\6range"
        b"\1\x81\xe1\x33\3\2\2t",
        b"\0\6" + group: b"\0\0" + b"\0\0\0\1" + b"\0",
        b"\0\7" + member: b"\0\0" + b"\2" + topic_id + numbers + b"\0" + b"\0",
        # Epoch, previous epoch, state; assigned partitions with their epochs; partitions being revoked.
        b"\0\x08" + member: b"\0\0" + b"\0\0\0\1" + bytes(4) + b"\0"
        b"\2" + topic_id + numbers + b"\1\0" + bytes([len(epochs)]) + epochs + b"\1" + b"\0",
    }


def test_consumer_group_records_round_trip() -> None:
    driver, first, second = pair(t=5)
    driver.client("s", topics=(), instance_id="i", pattern="t", assignor="range").join()
    first.heartbeat()
    snapshot = [consumer_entry(driver.group, key, 7) for key in keys_of(driver.group)]
    for log in (driver.log, snapshot):
        restored_group = restored(log, 0)
        restored_group.unstored.clear()
        assert [consumer_entry(restored_group, key, 7) for key in keys_of(driver.group)] == snapshot
    assert stored_in(driver.log).changed_at_ms == 7
    second.leave()
    stored = stored_in(driver.log)
    assert set(stored.members) == set(stored.current_assignments) == {"a", "s"}
    assert "b" not in stored.target


def test_topic_patterns_match_like_re2() -> None:
    with all_cases() as case:
        for pattern, found in [
            (".*", {"shop.a", "shop-b", "x1", "Ab"}),
            (r"shop\..*", {"shop.a"}),
            ("^shop.+$", {"shop.a", "shop-b"}),
            ("shop", set()),
            (r"\w\d|(?:a|[A-C])b", {"x1", "Ab"}),
            ("[^x]{2}", {"Ab"}),
            ("(?i)aB", {"Ab"}),
            (r"\Qshop.\E[[:alpha:]]", {"shop.a"}),
            ("(?P<name>x)1??1", {"x1"}),
        ]:
            with case((pattern, found)):
                assert matching_topics(pattern, ["shop.a", "shop-b", "x1", "Ab"]) == found


def test_malformed_topic_patterns_are_refused() -> None:
    with all_cases() as case:
        for pattern in [
            *("(", "a)", "[a", "*", "a{2,1}", "a{9999}", "(?=a)", "\\", "[z-a]", r"\1"),
            "((a{1000}){1000}){1000}",
            "((){1000}){1000}",
        ]:
            with case(pattern):
                assert refusal(matching_topics, pattern, ["a"]) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_expensive_topic_patterns_are_refused() -> None:
    names = ["".join("ab"[(number >> bit) & 1] for bit in range(12)) * 20 for number in range(2000)]
    assert matching_topics("(a*)*(b|ab)*c" + ".*" * 100 + "x", names) == frozenset()
    assert refusal(matching_topics, "(a|b)*a(a|b){200}", names) is ErrorCode.INVALID_REGULAR_EXPRESSION


@st.composite
def assignment_samples(draw: st.DrawFn) -> tuple[list[SubscribedTopic], dict[str, set[TopicIdPartition]]]:
    members = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    subsets = st.lists(st.sampled_from(members), min_size=1, unique=True).map(lambda found: tuple(sorted(found)))
    topics = [SubscribedTopic(n.to_bytes(16), draw(st.integers(1, 9)), draw(subsets)) for n in range(3)]
    present: dict[str, set[TopicIdPartition]] = {member: set() for member in members}
    for topic in topics:
        for index in range(draw(st.integers(0, 12))):
            owner = draw(st.sampled_from([*members, ""]))
            if owner:
                present[owner].add((topic.topic_id, index))
    return topics, present


@given(assignment_samples(), st.sampled_from(sorted(ASSIGNORS)))
def test_assignors_assign_each_partition_to_one_subscriber(sample: Any, name: str) -> None:
    topics, present = sample
    found = ASSIGNORS[name](topics, present)
    given_out = [partition for partitions in found.values() for partition in partitions]
    assert sorted(given_out) == [(topic.topic_id, index) for topic in topics for index in range(topic.partitions)]
    for topic in topics:
        assert {owner for owner, of_owner in found.items() if any(i == topic.topic_id for i, _ in of_owner)} <= set(
            topic.members
        )
    if name == "uniform":
        assert ASSIGNORS[name](topics, found) == found, "a balanced assignment stays"
        if len({topic.members for topic in topics}) == 1:
            loads = [len(found.get(member, ())) for member in topics[0].members]
            assert max(loads) - min(loads) <= 1


@given(assignment_samples())
def test_uniform_assignor_moves_minimal_partitions(sample: Any) -> None:
    topics, present = sample
    member_ids = tuple(sorted(present))
    topics = [SubscribedTopic(topic.topic_id, topic.partitions, member_ids) for topic in topics]
    existing = {(topic.topic_id, index) for topic in topics for index in range(topic.partitions)}
    found = ASSIGNORS["uniform"](topics, present)
    for member in member_ids:
        before = present[member] & existing
        assert found[member] <= before or before <= found[member], "no member exchanges one partition for another"


def test_assignor_handles_thousands_of_members_and_topics_quickly() -> None:
    """An algorithm that visits each member for each topic takes seconds and blocks all other requests."""
    everybody = tuple(f"m{number:03}" for number in range(1000))
    topics = [SubscribedTopic(number.to_bytes(16), 2, everybody[:-1]) for number in range(5000)]
    before = ASSIGNORS["uniform"](topics, {})
    topics = [SubscribedTopic(topic.topic_id, topic.partitions, everybody) for topic in topics]
    began_s = time.thread_time()
    found = ASSIGNORS["uniform"](topics, before)
    assert time.thread_time() - began_s < 0.5
    assert {len(partitions) for partitions in found.values()} == {10}
    assert sum(len(found[member] - before[member]) for member in everybody[:-1]) == 0


class ConsumersUnderLoad(RuleBasedStateMachine):
    """Members join, send heartbeats, leave, lose responses and expire; topics change; the broker restarts; in any
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(FakeTopicCatalog(t=3, u=2))
        self.clients: dict[str, Client] = {}
        self.now = 0
        self.count = 0

    @rule(data=st.data())
    def newcomer(self, data: st.DataObject) -> None:
        self.count += 1
        topics = data.draw(st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "v"), ()]))
        pattern = data.draw(st.sampled_from([None, None, "[tv]"]))
        client = self.driver.client(f"m{self.count}", topics=topics, pattern=pattern)
        client.join(self.now)
        self.clients[client.member_id] = client

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        variant = data.draw(st.sampled_from(["plain", "plain", "plain", "full", "silent", "lost", "subscribe"]))
        if variant == "subscribe":
            client.topics = data.draw(st.sampled_from([("t",), ("u",), ("t", "u", "v")]))
        try:
            if variant == "lost":
                client.heartbeat(self.now, full=True, loses_response=True)
                client.heartbeat(self.now, full=True)
            else:
                client.heartbeat(self.now, full=variant in ("full", "subscribe"), silent=variant == "silent")
        except RequestRefused as refused:
            assert refused.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
            assert client.member_id not in self.driver.group.members
            client.join(self.now)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        if client.member_id in self.driver.group.members:
            client.leave()

    @rule(name=st.sampled_from("tuv"), count=st.integers(1, 6))
    def topic(self, name: str, count: int) -> None:
        present = self.driver.topics.get(name)
        if present is not None and count < present.partitions:
            self.driver.topics.drop(name)
        else:
            self.driver.topics.put(name, count)

    @rule(ms=st.integers(1, 30_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        due = self.driver.group.next_deadline_ms()
        if due is not None and due <= self.now:
            self.driver.tick(self.now)
            next_due = self.driver.group.next_deadline_ms()
            assert next_due is None or next_due > self.now, "a tick leaves nothing that is due"
            for client in self.clients.values():
                if client.member_id not in self.driver.group.members:
                    # Its partitions belong to others now; a consumer stops reading when its session ends.
                    client.owned = NO_PARTITIONS

    @rule()
    def restart(self) -> None:
        self.driver.restart(self.now)

    @rule()
    def all_stable(self) -> None:
        for client in self.clients.values():
            if client.member_id not in self.driver.group.members:
                client.join(self.now)
        self.driver.heartbeat_until_stable(self.clients.values(), self.now)
        owned = [partition for client in self.clients.values() for partition in client.owned]
        subscribed = [name for name in self.driver.group.subscribed if self.driver.topics.get(name) is not None]
        assert sorted(owned) == sorted(self.driver.topics.all(*subscribed))
        if self.clients:
            assert self.driver.group.state is ConsumerGroupState.STABLE

    @invariant()
    def no_partition_is_shared(self) -> None:
        """Neither the group's assignment nor the clients' partitions overlap."""
        group = self.driver.group
        for found in (
            [p for member in group.members.values() for p in (*member.assigned, *member.revoking)],
            [p for client in self.clients.values() for p in client.owned],
        ):
            assert len(found) == len(set(found))
        for client in self.clients.values():
            member = group.members.get(client.member_id)
            if member is not None:
                assert client.owned <= member.assigned.keys() | member.revoking.keys()


ConsumersUnderLoad.TestCase.settings = settings(stateful_step_count=40)
TestConsumersUnderLoad = ConsumersUnderLoad.TestCase
