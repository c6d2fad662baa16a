"""Password hashes, subject patterns, the users file, authorization and authentication, without a server."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.access import authenticator as authenticator_module
from headrace.registry.access.authenticator import (
    CHECKS_MAX,
    CHECKS_WAITING_MAX,
    RegistryUsersFile,
    _FairSemaphore,
    _network,
)
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.permissions import Permission, Permissions, SubjectPattern, Target
from headrace.registry.access.required_permissions import (
    ADMIN_ALL_CONTEXTS,
    NO_CREDENTIALS,
    TOO_BUSY,
    WRONG_CREDENTIALS,
    ResourceKind,
    authorize,
    required_permission,
    route_label,
)
from headrace.registry.access.users import Principal, UsersFileInvalid, parse_users, user_line
from headrace.registry.errors import UsersFileUnusable
from headrace.registry.names import scope_name
from support.cases import all_cases
from support.golden import case_lines, golden
from support.logs import logged

QUICK = Cost(log2_n=4, r=1, p=1)
SALT = bytes(range(16))


def line(name: str, password: str) -> str:
    return user_line(name, PasswordHash.of(password, SALT, QUICK))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# RFC 7914, section 12: password "pleaseletmein", salt "SodiumChloride", N=16384, r=8, p=1.
RFC_VECTOR = (
    "7023bdcb3afd7348461c06cd81fd38eb"
    "fda8fbba904f8e3ea9b543f6545da1f2"
    "d5432955613f0fcf62d49705242a9af9"
    "e61e85dc0d651e40dfcf017b45575887"
)


def test_password_hash_matches_the_rfc_7914_vector() -> None:
    salt, digest = (
        base64.b64encode(part).decode().rstrip("=") for part in (b"SodiumChloride", bytes.fromhex(RFC_VECTOR))
    )
    parsed = PasswordHash.parse(f"$scrypt$ln=14,r=8,p=1${salt}${digest}")
    assert parsed.matches("pleaseletmein")
    assert not parsed.matches("pleaseletmein ")


@given(st.text(max_size=50), st.binary(min_size=1, max_size=32))
def test_password_hash_round_trips_and_matches_its_password(password: str, salt: bytes) -> None:
    hashed = PasswordHash.of(password, salt, QUICK)
    assert PasswordHash.parse(str(hashed)) == hashed
    assert hashed.matches(password)
    assert not hashed.matches(password + "x")


def test_malformed_hash_is_rejected_and_not_repeated() -> None:
    with all_cases() as case:
        for text in [
            "",
            "secret",
            "$scrypt$ln=14,r=8$c2FsdA$aGFzaA",
            "$scrypt$ln=23,r=8,p=1$c2FsdA$" + "A" * 43,  # 8 GB
            "$scrypt$ln=99,r=8,p=1$c2FsdA$" + "A" * 43,
            "$scrypt$ln=0,r=8,p=1$c2FsdA$" + "A" * 43,
            "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA",  # four bytes
            "$scrypt$ln=14,r=8,p=1$c2FsdA$" + "A" * 45,
            "$2b$12$bcrypt",
        ]:
            with case(text):
                with pytest.raises(ValueError) as caught:
                    PasswordHash.parse(text)
                assert not text or text not in str(caught.value)


def test_repr_hides_hashes() -> None:
    hashed = PasswordHash.of("secret", SALT, QUICK)
    policy = parse_users(f"user a {hashed}")
    assert base64.b64encode(hashed.digest).decode().rstrip("=") not in repr(policy) + repr(hashed)
    assert repr(hashed.digest) not in repr(policy) + repr(hashed)


PATTERNS = [
    ("*", "orders", True),
    ("*", ":.eu:orders", True),
    ("*", "", True),
    ("orders-*", "orders-value", True),
    ("orders-*", "orders", False),
    ("orders-*", ":.eu:orders-value", False),
    ("*-value", ":.eu:orders-value", False),
    (":.eu:*", ":.eu:orders", True),
    (":.eu:*", "orders", False),
    (":.eu:*", ":.europe:orders", False),
    (":.eu:orders*", ":.eu:orders", True),
    (":*:orders", "orders", True),
    (":*:orders", ":.eu:orders", True),
    (":.:orders", "orders", True),
    (":.:*", ":.eu:orders", False),
    ("a*b", "ab", True),
    ("a*a", "a", False),
    ("a*b*c", "a-b-b-c", True),
    ("a*b*c", "a-c-b", False),
    ("*b*", "abc", True),
    ("a**", "a", True),
    ("a%2Ab", "a*b", True),
    ("a%2Ab", "axb", False),
    ("a%20b", "a b", True),
    ("%25", "%", True),
    ("a.c", "abc", False),
    ("orders", "orders\n", False),
]


def test_subject_patterns_match_names_and_contexts() -> None:
    with all_cases() as case:
        for pattern, subject, matches in PATTERNS:
            with case((pattern, subject, matches)):
                assert SubjectPattern.parse(pattern).covers(Target.of_subject(subject)) is matches


def test_context_scope_is_covered_by_patterns_of_the_whole_context_only() -> None:
    with all_cases() as case:
        for pattern, scope, covered in [
            ("*", ":.:", True),
            ("*", ":.__GLOBAL:", True),
            ("*", ":.eu:", True),
            (":.:*", ":.:", True),
            (":.:*", ":.__GLOBAL:", False),
            (":.eu:*", ":.eu:", True),
            (":.eu:*", ":.:", False),
            (":*:*", ":.__GLOBAL:", True),
            ("a*", ":.:", False),
            (":.eu:a*", ":.eu:", False),
            (":.eu:a*", ":.eu:ab", True),
        ]:
            with case((pattern, scope, covered)):
                assert SubjectPattern.parse(pattern).covers(Target.of_scope(scope_name(scope))) is covered


def test_empty_pattern_and_wildcard_in_context_are_rejected() -> None:
    with all_cases() as case:
        for text in ["", ":.e*u:a"]:
            with case(text), pytest.raises(ValueError):
                SubjectPattern.parse(text)


def test_pattern_with_many_stars_is_fast_on_a_long_subject() -> None:
    assert not SubjectPattern.parse("*a" * 50 + "*b").covers(Target.of_subject("a" * 100_000))


POLICY = parse_users(
    f"""
    # people
    {line("alice", "wonder")}
    {line("bob", "builder")}  # with a comment
    grant alice write orders-*
    grant alice admin :.sandbox:*
    grant * read shared-#1*
    grant anonymous read public-*
    """
)


def test_users_file_grants_permissions() -> None:
    alice, bob = POLICY.principals["alice"].permissions, POLICY.principals["bob"].permissions
    assert alice.allow(Permission.WRITE, Target.of_subject("orders-value"))
    assert not alice.allow(Permission.ADMIN, Target.of_subject("orders-value"))
    assert alice.allow(Permission.ADMIN, Target.of_subject(":.sandbox:x"))
    assert alice.allow(Permission.READ, Target.of_subject("shared-#1-a"))
    assert bob.allow(Permission.READ, Target.of_subject("shared-#1-a"))
    assert not bob.allow(Permission.READ, Target.of_subject("public-a"))
    assert POLICY.anonymous.permissions.allow(Permission.READ, Target.of_subject("public-a"))
    assert (alice.highest_anywhere, bob.highest_anywhere, bob.highest_everywhere) == (
        Permission.ADMIN,
        Permission.READ,
        None,
    )


def test_users_file_errors_name_the_line_and_hide_hashes() -> None:
    texts = {
        "unknown keyword": "usr a b",
        "no hash": "\nuser a",
        "malformed hash": "user a secret",
        "grant to no user": "grant a read *",
        "user twice": f"{line('a', 'x')}\n{line('a', 'y')}",
        "unknown right": f"{line('a', 'x')}\ngrant a own *",
        "write for anonymous": "grant anonymous write *",
        "user called anonymous": f"user anonymous {PasswordHash.of('x', SALT, QUICK)}",
        "colon in a name": f"user a:b {PasswordHash.of('x', SALT, QUICK)}",
        "empty file": "",
        "no user": "# nobody yet\ngrant * read *",
        "long line": "x" * 5000,
    }
    messages = {}
    for case, text in texts.items():
        with pytest.raises(UsersFileInvalid) as caught:
            parse_users(text)
        messages[case] = str(caught.value)
    found = case_lines(messages.items())
    assert "secret" not in found
    assert found == golden("messages/registry_users_file.txt", found)


def test_equal_permissions_have_equal_keys() -> None:
    policy = parse_users(
        "\n".join([line(name, name) for name in "abc"] + ["grant a read x", "grant b read x", "grant c read y"])
    )
    a, b, c = (policy.principals[name].key for name in "abc")
    assert a == b != c


def principal(name: str, *rows: tuple[Permission, str]) -> Principal:
    return Principal(name, Permissions(tuple((permission, SubjectPattern.parse(text)) for permission, text in rows)))


def test_denial_is_401_without_credentials_and_403_with_them() -> None:
    orders = Target.of_subject("orders")
    assert authorize(principal(""), Permission.READ, ResourceKind.SUBJECT, orders) is NO_CREDENTIALS
    denial = authorize(principal("bob", (Permission.READ, "*")), Permission.WRITE, ResourceKind.SUBJECT, orders)
    assert denial is not None
    assert (denial.status, denial.error_code) == (403, 40301)
    assert denial.message == "User:bob is denied operation Write on subject orders"
    assert authorize(principal("bob", (Permission.WRITE, "*")), Permission.WRITE, ResourceKind.SUBJECT, orders) is None


def test_lists_require_a_permission_on_any_subject() -> None:
    assert (
        authorize(principal("bob", (Permission.READ, "b-*")), Permission.READ, ResourceKind.ANY_SUBJECT, None) is None
    )
    assert authorize(principal("bob"), Permission.READ, ResourceKind.ANY_SUBJECT, None) is not None
    assert authorize(principal(""), Permission.READ, ResourceKind.PUBLIC_INFO, None) is None


def test_request_without_target_requires_the_permission_on_everything() -> None:
    assert (
        authorize(principal("bob", (Permission.ADMIN, ":.eu:*")), Permission.ADMIN, ResourceKind.CONTEXT, None)
        is not None
    )
    assert authorize(principal("bob", (Permission.ADMIN, "*")), Permission.ADMIN, ResourceKind.CONTEXT, None) is None


def test_required_permission_is_found_by_route_label() -> None:
    rule = "/subjects/<subject:subject>/versions/<segment:version>"
    assert route_label(rule) == "/subjects/{subject}/versions/{version}"
    assert route_label("/schemas/ids/<number:schema_id>") == "/schemas/ids/{id}"
    assert required_permission("HEAD", "/subjects") is required_permission("GET", "/subjects")
    assert required_permission("DELETE", "/contexts/{context}").resource is ResourceKind.CONTEXT
    assert required_permission("PATCH", "/subjects") is ADMIN_ALL_CONTEXTS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def users_path(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"{line('alice', 'wonder')}\ngrant alice admin *\n")
    return path


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Passwords that were hashed."""
    found: list[str] = []
    matches = PasswordHash.matches

    def counted(self: PasswordHash, password: str) -> bool:
        found.append(password)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", counted)
    return found


@pytest.fixture
def users(users_path: Path, clock: Clock) -> RegistryUsersFile:
    return RegistryUsersFile(users_path, clock)


def test_accepted_password_is_hashed_once(users: RegistryUsersFile, computed: list[str]) -> None:
    header = basic("alice", "wonder")
    assert users.cached_principal(header) is None
    found = users.authenticate(header)
    assert isinstance(found, Principal)
    assert found.name == "alice"
    assert users.cached_principal(header) is found
    assert users.authenticate(header) is found
    assert computed == ["wonder"]


def test_rejected_password_is_cached_for_some_seconds(
    users: RegistryUsersFile, computed: list[str], clock: Clock
) -> None:
    for header in (basic("alice", "x"), basic("nobody", "wonder")):
        assert users.authenticate(header) is WRONG_CREDENTIALS
        assert users.cached_principal(header) is None
        assert users.authenticate(header) is WRONG_CREDENTIALS
    assert computed == ["x", "wonder"]  # an unknown user costs one hash too
    clock.now += 11
    assert users.authenticate(basic("alice", "x")) is WRONG_CREDENTIALS
    assert computed == ["x", "wonder", "x"]


def test_every_check_computes_one_hash_of_each_cost(
    users_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[Cost] = []
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda self, text: costs.append(self.cost) or matches(self, text))
    expensive = PasswordHash.of("builder", b"salt", Cost(5, 1, 2))
    users_path.write_text(f"{line('alice', 'wonder')}\n{user_line('bob', expensive)}\n")
    users = RegistryUsersFile(users_path, clock)
    computed: list[list[Cost]] = []
    for header in (basic("alice", "wonder"), basic("alice", "x"), basic("bob", "builder"), basic("nobody", "x")):
        users.authenticate(header)
        computed.append(costs.copy())
        costs.clear()
    assert len(set(computed[0])) == 2
    assert computed == [computed[0]] * 4
    assert [
        users.cached_principal(basic(*known)) is not None for known in (("alice", "wonder"), ("bob", "builder"))
    ] == [True] * 2


def test_malformed_headers_are_rejected_without_hashing(users: RegistryUsersFile, computed: list[str]) -> None:
    with all_cases() as case:
        for header in [
            "",
            "Basic",
            "Basic !!!",
            "Basic " + base64.b64encode(b"alice").decode(),
            "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
            "Bearer abc",
            "Basic " + "QUFB" * 5000,
            basic("alice", "x" * 2000),
            "Basic \udcff",
        ]:
            with case(header):
                assert users.authenticate(header) is WRONG_CREDENTIALS
                assert computed == []


def test_scheme_is_case_insensitive(users: RegistryUsersFile) -> None:
    assert isinstance(users.authenticate(basic("alice", "wonder").replace("Basic", "bAsIc")), Principal)


def test_client_without_header_is_anonymous(users: RegistryUsersFile) -> None:
    found = users.cached_principal(None)
    assert isinstance(found, Principal)
    assert (found.name, found.permissions.highest_anywhere) == ("", None)


def test_changed_users_file_is_reloaded_within_a_second(
    users: RegistryUsersFile, users_path: Path, clock: Clock
) -> None:
    header = basic("alice", "wonder")
    users.authenticate(header)
    users_path.write_text(line("bob", "builder"))
    clock.now += 1.1
    assert users.authenticate(header) is WRONG_CREDENTIALS
    assert isinstance(users.authenticate(basic("bob", "builder")), Principal)


def test_reload_keeps_accepted_passwords_unless_the_hash_changed(
    users: RegistryUsersFile, users_path: Path, clock: Clock, computed: list[str]
) -> None:
    header = basic("alice", "wonder")
    users.authenticate(header)
    users_path.write_text(f"{line('alice', 'wonder')}\ngrant alice read x\n# changed")
    clock.now += 1.1
    found = users.cached_principal(header)
    assert found is not None
    assert found.permissions.highest_anywhere is Permission.READ
    assert computed == ["wonder"]
    users_path.write_text(f"{line('alice', 'other')}\ngrant alice read x\n")
    clock.now += 1.1
    assert users.authenticate(header) is WRONG_CREDENTIALS


@pytest.mark.parametrize("content", [None, b"grant x read *", b"\xff"])
def test_broken_users_file_leaves_the_policy_and_is_logged_once(
    users: RegistryUsersFile, users_path: Path, clock: Clock, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        users_path.unlink()
    else:
        users_path.write_bytes(content)
    for _ in range(3):
        clock.now += 1.1
        assert isinstance(users.authenticate(basic("alice", "wonder")), Principal)
    assert len(logged(caplog, "registry.access.authenticator", users_path)) == len(caplog.records) == 1


@pytest.mark.parametrize("content", [None, b"grant x read *", b"\xff"])
def test_broken_users_file_at_the_start_raises_users_file_unusable(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "users"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsersFileUnusable, match=str(path)):
        RegistryUsersFile(path)


def test_concurrent_requests_with_one_password_share_one_hash(users: RegistryUsersFile, computed: list[str]) -> None:
    results: list[object] = []
    header = basic("alice", "wonder")
    threads = [threading.Thread(target=lambda: results.append(users.authenticate(header))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, results))) == 1
    assert computed == ["wonder"]


@pytest.fixture
def busy_checks(users: RegistryUsersFile) -> Iterator[list[None]]:
    """Occupies all concurrent checks, one per item of the list."""
    held: list[None] = [None for _ in range(CHECKS_MAX) if users._checks.acquire(0)]
    yield held
    for _ in held:
        users._checks.release()


def test_check_that_waits_too_long_is_denied_with_429(
    users: RegistryUsersFile, busy_checks: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator_module, "CHECK_WAIT_S", 0.0)
    found = users.authenticate(basic("nobody", "wonder"))
    assert not isinstance(found, Principal)
    assert found.status == 429
    assert users._checks._waiting == deque()


def test_number_of_waiting_checks_is_limited(users: RegistryUsersFile, busy_checks: list[None]) -> None:
    header = basic("alice", "wonder")
    with ThreadPoolExecutor(CHECKS_WAITING_MAX) as threads:
        waiting = [threads.submit(users.authenticate, basic(f"n{n}", "")) for n in range(CHECKS_WAITING_MAX)]
        while len(users._checks._waiting) < CHECKS_WAITING_MAX:
            time.sleep(0.001)
        assert users.authenticate(header) is TOO_BUSY
        while busy_checks:
            busy_checks.pop()
            users._checks.release()
        assert {one.result() for one in waiting} <= {WRONG_CREDENTIALS, TOO_BUSY}
    assert isinstance(users.authenticate(header), Principal)


def test_fair_semaphore_serves_threads_in_order_of_arrival() -> None:
    semaphore, order = _FairSemaphore(1, 20), list[int]()
    assert semaphore.acquire(0)
    may_release = threading.Event()

    def wait(number: int) -> None:
        assert semaphore.acquire(60)
        order.append(number)
        assert may_release.wait(60)
        semaphore.release()

    with ThreadPoolExecutor(20) as threads:
        for number in range(20):
            threads.submit(wait, number)
            while len(semaphore._waiting) <= number:
                time.sleep(0.001)
        assert not semaphore.acquire(0), "the queue is full"
        semaphore.release()
        # The first waiting thread owns the semaphore now, even before it runs.
        assert not semaphore.acquire(0)
        may_release.set()
    assert order == list(range(20))
    assert semaphore.acquire(0)
    assert not semaphore.acquire(0)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The check of a password in this set blocks until the password is removed."""
    found: set[str] = set()
    matches = PasswordHash.matches

    def wait(self: PasswordHash, password: str) -> bool:
        while password in found:
            time.sleep(0.001)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", wait)
    yield found
    found.clear()


def wait_for_background_checks(users: RegistryUsersFile) -> None:
    """Waits until no background check is pending."""
    while users._has_background_thread:
        time.sleep(0.001)


def test_background_checks_do_not_reveal_user_names(users: RegistryUsersFile, blocked: set[str]) -> None:
    assert users.authenticate(basic("alice", "guess"), "bad") is WRONG_CREDENTIALS
    blocked.add("slow")
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(users.authenticate, basic("alice", "slow"), "bad")
        while not users._guesses:
            time.sleep(0.001)
        for _ in range(3):
            for name in ("alice", "nobody"):
                assert users.authenticate(basic(name, "other"), "bad") is TOO_BUSY
                wait_for_background_checks(users)
        # Requests from other addresses are checked, regardless of the background check of the same credentials.
        assert users.authenticate(basic("nobody", "other"), "good") is WRONG_CREDENTIALS
        assert users.cached_principal(basic("alice", "wonder")) is None
        assert users.authenticate(basic("alice", "wonder"), "bad") is TOO_BUSY
        wait_for_background_checks(users)
        assert isinstance(users.authenticate(basic("alice", "wonder"), "bad"), Principal)
        blocked.clear()
        assert slow.result() is WRONG_CREDENTIALS
    assert users._guesses == 0


def test_unknown_names_do_not_displace_the_check_of_a_user(users: RegistryUsersFile, blocked: set[str]) -> None:
    assert users.authenticate(basic("alice", "guess"), "bad") is WRONG_CREDENTIALS
    blocked |= {"slow", "0"}
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(users.authenticate, basic("alice", "slow"), "bad")
        while not users._guesses:
            time.sleep(0.001)
        for number in range(100):
            assert users.authenticate(basic(f"nobody {number}", str(number)), "bad") is TOO_BUSY
        assert users.authenticate(basic("alice", "wonder"), "bad") is TOO_BUSY
        assert users.authenticate(basic("alice", "later"), "bad") is TOO_BUSY
        assert set(users._background_checks) <= {"", "alice"}
        blocked.remove("0")
        wait_for_background_checks(users)
        assert users.cached_principal(basic("alice", "wonder")) is not None
        blocked.clear()
        slow.result()


def test_background_checks_continue_after_a_failure(
    users: RegistryUsersFile, busy_checks: list[None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(authenticator_module, "CHECK_WAIT_S", 0.0)
    header = basic("alice", "wonder")
    with monkeypatch.context() as broken:
        broken.setattr(PasswordHash, "matches", lambda *_: 1 // 0)
        assert users.authenticate(header) is TOO_BUSY
        wait_for_background_checks(users)
    assert len(logged(caplog, "registry.access.authenticator")) == len(caplog.records) == 1
    assert users.authenticate(header) is TOO_BUSY
    wait_for_background_checks(users)
    assert isinstance(users.cached_principal(header), Principal)


def test_concurrent_guesses_of_an_address_are_denied_after_the_first(
    users: RegistryUsersFile, blocked: set[str]
) -> None:
    blocked |= {"guess 0", "guess 1"}
    with ThreadPoolExecutor(CHECKS_MAX + CHECKS_WAITING_MAX) as threads:
        guesses = [
            threads.submit(users.authenticate, basic("alice", f"guess {n}"), "bad")
            for n in range(CHECKS_MAX + CHECKS_WAITING_MAX)
        ]
        while len(users._checks._waiting) < CHECKS_WAITING_MAX:
            time.sleep(0.001)
        blocked.clear()
    results = [attempt.result() for attempt in guesses]
    assert results[:CHECKS_MAX] == [WRONG_CREDENTIALS] * CHECKS_MAX
    assert set(results[CHECKS_MAX:]) == {TOO_BUSY}
    wait_for_background_checks(users)


GUESSERS = 30


@pytest.mark.parametrize(
    ("addresses", "names", "own"),
    [
        (["bad"], ["alice", "nobody"], "good"),
        ([f"bad {n}" for n in range(GUESSERS)], ["alice", "nobody"], "good"),
        (["good"], ["bob", "nobody"], "good"),
        ([f"bad {n}" for n in range(GUESSERS)] + ["good"], ["bob", "nobody"], "good"),
        ([f"2001:db8::{n >> 16:x}:{n & 0xFFFF:x}" for n in range(100_000)], ["alice", "nobody"], "2001:db8:0:1::1"),
    ],
    ids=["one address", "many", "the same", "many and the same", "one network"],
)
def test_guessing_does_not_lock_out_a_user(
    users: RegistryUsersFile,
    users_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    names: list[str],
    own: str,
) -> None:
    """During continuous guessing, a user of another address is accepted at once, one of the same address on retry."""
    users_path.write_text("\n".join(line(name, "wonder") for name in ("alice", "bob")))
    clock.now += 1.1
    header = basic("alice", "wonder")
    ends = threading.Event()
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda *check: (time.sleep(0.002), matches(*check))[1])

    def attempt(number: int) -> int:
        tries = itertools.count()
        while not ends.is_set():
            tried = next(tries)
            name, password = names[tried % len(names)], f"guess {number} {tried}"
            result = users.authenticate(basic(name, password), addresses[(number + GUESSERS * tried) % len(addresses)])
            assert result in (WRONG_CREDENTIALS, TOO_BUSY)
        return next(tries)

    for address in addresses[:GUESSERS] + addresses[-1:]:
        assert users.authenticate(basic(names[0], "guess"), address) in (WRONG_CREDENTIALS, TOO_BUSY)
        users._state.rejected.clear()
    with ThreadPoolExecutor(GUESSERS) as threads:
        guessers = [threads.submit(attempt, number) for number in range(GUESSERS)]
        try:
            while len(users._state.rejected) < 10:
                time.sleep(0.001)
            found = users.authenticate(header, own)
            if own in addresses:
                for _ in range(200):
                    if isinstance(found, Principal):
                        break
                    time.sleep(0.01)
                    found = users.authenticate(header, own)
            assert not any(guesser.done() for guesser in guessers)
        finally:
            ends.set()
        assert sum(guesser.result() for guesser in guessers) > GUESSERS
    assert isinstance(found, Principal)
    wait_for_background_checks(users)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:a::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::2", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::2", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_network_identifies_the_sender_of_a_guess(address: str, network: str) -> None:
    assert _network(address) == network


def test_address_that_guesses_again_stays_in_memory(users: RegistryUsersFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator_module, "GUESSERS_MAX", 2)
    for number, address in enumerate(["a", "b", "a", "c"]):
        users.authenticate(basic("alice", f"guess {number}"), address)
    assert list(users._wrong_at) == ["a", "c"]
