"""Users, rights and decisions, without a server."""

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
    UsersFile,
    _network,
    _Turns,
)
from headrace.registry.access.needs import (
    ADMIN_EVERYWHERE,
    NO_CREDENTIALS,
    TOO_BUSY,
    WRONG_CREDENTIALS,
    About,
    decide,
    need_of,
    route_label,
)
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.rights import Right, Rights, SubjectPattern, Target
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


def test_the_hash_is_scrypt() -> None:
    salt, digest = (
        base64.b64encode(part).decode().rstrip("=") for part in (b"SodiumChloride", bytes.fromhex(RFC_VECTOR))
    )
    parsed = PasswordHash.parse(f"$scrypt$ln=14,r=8,p=1${salt}${digest}")
    assert parsed.matches("pleaseletmein")
    assert not parsed.matches("pleaseletmein ")


@given(st.text(max_size=50), st.binary(min_size=1, max_size=32))
def test_a_hash_reads_back_and_knows_its_password(password: str, salt: bytes) -> None:
    hashed = PasswordHash.of(password, salt, QUICK)
    assert PasswordHash.parse(str(hashed)) == hashed
    assert hashed.matches(password)
    assert not hashed.matches(password + "x")


def test_other_texts_are_no_hashes() -> None:
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


def test_hashes_are_not_shown() -> None:
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


def test_patterns() -> None:
    with all_cases() as case:
        for pattern, subject, matches in PATTERNS:
            with case((pattern, subject, matches)):
                assert SubjectPattern.parse(pattern).covers(Target.of_subject(subject)) is matches


def test_the_whole_of_a_context_needs_a_pattern_for_the_whole() -> None:
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


def test_what_is_no_pattern() -> None:
    with all_cases() as case:
        for text in ["", ":.e*u:a"]:
            with case(text), pytest.raises(ValueError):
                SubjectPattern.parse(text)


def test_many_stars_over_a_long_subject_are_quick() -> None:
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


def test_a_users_file() -> None:
    alice, bob = POLICY.principals["alice"].rights, POLICY.principals["bob"].rights
    assert alice.allow(Right.WRITE, Target.of_subject("orders-value"))
    assert not alice.allow(Right.ADMIN, Target.of_subject("orders-value"))
    assert alice.allow(Right.ADMIN, Target.of_subject(":.sandbox:x"))
    assert alice.allow(Right.READ, Target.of_subject("shared-#1-a"))
    assert bob.allow(Right.READ, Target.of_subject("shared-#1-a"))
    assert not bob.allow(Right.READ, Target.of_subject("public-a"))
    assert POLICY.anonymous.rights.allow(Right.READ, Target.of_subject("public-a"))
    assert (alice.somewhere, bob.somewhere, bob.everywhere) == (Right.ADMIN, Right.READ, None)


def test_errors_of_a_users_file_name_the_line_without_repeating_a_hash() -> None:
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


def test_equal_rights_have_equal_keys() -> None:
    policy = parse_users(
        "\n".join([line(name, name) for name in "abc"] + ["grant a read x", "grant b read x", "grant c read y"])
    )
    a, b, c = (policy.principals[name].key for name in "abc")
    assert a == b != c


def principal(name: str, *rows: tuple[Right, str]) -> Principal:
    return Principal(name, Rights(tuple((right, SubjectPattern.parse(text)) for right, text in rows)))


def test_a_refusal_asks_for_credentials_only_when_there_were_none() -> None:
    orders = Target.of_subject("orders")
    assert decide(principal(""), Right.READ, About.SUBJECT, orders) is NO_CREDENTIALS
    refused = decide(principal("bob", (Right.READ, "*")), Right.WRITE, About.SUBJECT, orders)
    assert refused is not None
    assert (refused.status, refused.error_code) == (403, 40301)
    assert refused.message == "User:bob is denied operation Write on subject orders"
    assert decide(principal("bob", (Right.WRITE, "*")), Right.WRITE, About.SUBJECT, orders) is None


def test_lists_need_any_right() -> None:
    assert decide(principal("bob", (Right.READ, "b-*")), Right.READ, About.ANYTHING, None) is None
    assert decide(principal("bob"), Right.READ, About.ANYTHING, None) is not None
    assert decide(principal(""), Right.READ, About.NOTHING, None) is None


def test_what_names_no_target_needs_the_right_on_everything() -> None:
    assert decide(principal("bob", (Right.ADMIN, ":.eu:*")), Right.ADMIN, About.CONTEXT, None) is not None
    assert decide(principal("bob", (Right.ADMIN, "*")), Right.ADMIN, About.CONTEXT, None) is None


def test_routes_are_found_by_their_rule() -> None:
    rule = "/subjects/<subject:subject>/versions/<segment:version>"
    assert route_label(rule) == "/subjects/{subject}/versions/{version}"
    assert route_label("/schemas/ids/<number:schema_id>") == "/schemas/ids/{id}"
    assert need_of("HEAD", "/subjects") is need_of("GET", "/subjects")
    assert need_of("DELETE", "/contexts/{context}").about is About.CONTEXT
    assert need_of("PATCH", "/subjects") is ADMIN_EVERYWHERE


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
    """Passwords whose hash was computed."""
    found: list[str] = []
    matches = PasswordHash.matches

    def counted(self: PasswordHash, password: str) -> bool:
        found.append(password)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", counted)
    return found


@pytest.fixture
def users(users_path: Path, clock: Clock) -> UsersFile:
    return UsersFile(users_path, clock)


def test_a_password_is_computed_once(users: UsersFile, computed: list[str]) -> None:
    header = basic("alice", "wonder")
    assert users.recall(header) is None
    found = users.authenticate(header)
    assert isinstance(found, Principal)
    assert found.name == "alice"
    assert users.recall(header) is found
    assert users.authenticate(header) is found
    assert computed == ["wonder"]


def test_a_wrong_password_is_forgotten_after_a_while(users: UsersFile, computed: list[str], clock: Clock) -> None:
    for header in (basic("alice", "x"), basic("nobody", "wonder")):
        assert users.authenticate(header) is WRONG_CREDENTIALS
        assert users.recall(header) is None
        assert users.authenticate(header) is WRONG_CREDENTIALS
    assert computed == ["x", "wonder"]  # an unknown user costs the same
    clock.now += 11
    assert users.authenticate(basic("alice", "x")) is WRONG_CREDENTIALS
    assert computed == ["x", "wonder", "x"]


def test_whoever_it_is_the_same_costs_are_computed(
    users_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[Cost] = []
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda self, text: costs.append(self.cost) or matches(self, text))
    dear = PasswordHash.of("builder", b"salt", Cost(5, 1, 2))
    users_path.write_text(f"{line('alice', 'wonder')}\n{user_line('bob', dear)}\n")
    users = UsersFile(users_path, clock)
    computed: list[list[Cost]] = []
    for header in (basic("alice", "wonder"), basic("alice", "x"), basic("bob", "builder"), basic("nobody", "x")):
        users.authenticate(header)
        computed.append(costs.copy())
        costs.clear()
    assert len(set(computed[0])) == 2
    assert computed == [computed[0]] * 4
    assert [users.recall(basic(*known)) is not None for known in (("alice", "wonder"), ("bob", "builder"))] == [
        True
    ] * 2


def test_malformed_headers_are_refused_without_a_hash(users: UsersFile, computed: list[str]) -> None:
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


def test_the_scheme_may_be_in_any_case(users: UsersFile) -> None:
    assert isinstance(users.authenticate(basic("alice", "wonder").replace("Basic", "bAsIc")), Principal)


def test_without_a_header_one_is_anonymous(users: UsersFile) -> None:
    found = users.recall(None)
    assert isinstance(found, Principal)
    assert (found.name, found.rights.somewhere) == ("", None)


def test_a_changed_file_counts_after_a_second(users: UsersFile, users_path: Path, clock: Clock) -> None:
    header = basic("alice", "wonder")
    users.authenticate(header)
    users_path.write_text(line("bob", "builder"))
    clock.now += 1.1
    assert users.authenticate(header) is WRONG_CREDENTIALS
    assert isinstance(users.authenticate(basic("bob", "builder")), Principal)


def test_a_change_of_rights_needs_no_new_computation_and_one_of_the_password_does(
    users: UsersFile, users_path: Path, clock: Clock, computed: list[str]
) -> None:
    header = basic("alice", "wonder")
    users.authenticate(header)
    users_path.write_text(f"{line('alice', 'wonder')}\ngrant alice read x\n# changed")
    clock.now += 1.1
    found = users.recall(header)
    assert found is not None
    assert found.rights.somewhere is Right.READ
    assert computed == ["wonder"]
    users_path.write_text(f"{line('alice', 'other')}\ngrant alice read x\n")
    clock.now += 1.1
    assert users.authenticate(header) is WRONG_CREDENTIALS


@pytest.mark.parametrize("content", [None, b"grant x read *", b"\xff"])
def test_a_file_that_breaks_later_changes_nothing_and_is_logged_once(
    users: UsersFile, users_path: Path, clock: Clock, content: bytes | None, caplog: pytest.LogCaptureFixture
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
def test_a_file_that_is_broken_at_the_start_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "users"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsersFileUnusable, match=str(path)):
        UsersFile(path)


def test_clients_that_start_together_share_one_computation(users: UsersFile, computed: list[str]) -> None:
    answers: list[object] = []
    header = basic("alice", "wonder")
    threads = [threading.Thread(target=lambda: answers.append(users.authenticate(header))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, answers))) == 1
    assert computed == ["wonder"]


@pytest.fixture
def taken(users: UsersFile) -> Iterator[list[None]]:
    """All turns are somebody else's for as long as the list is not cleared."""
    held: list[None] = [None for _ in range(CHECKS_MAX) if users._turns.take(0)]
    yield held
    for _ in held:
        users._turns.give_back()


def test_who_waits_too_long_for_a_turn_is_told_so(
    users: UsersFile, taken: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator_module, "CHECK_WAIT_S", 0.0)
    found = users.authenticate(basic("nobody", "wonder"))
    assert not isinstance(found, Principal)
    assert found.status == 429
    assert users._turns._waiting == deque()


def test_only_so_many_wait_for_a_turn(users: UsersFile, taken: list[None]) -> None:
    header = basic("alice", "wonder")
    with ThreadPoolExecutor(CHECKS_WAITING_MAX) as threads:
        waiting = [threads.submit(users.authenticate, basic(f"n{n}", "")) for n in range(CHECKS_WAITING_MAX)]
        while len(users._turns._waiting) < CHECKS_WAITING_MAX:
            time.sleep(0.001)
        assert users.authenticate(header) is TOO_BUSY
        while taken:
            taken.pop()
            users._turns.give_back()
        assert {one.result() for one in waiting} <= {WRONG_CREDENTIALS, TOO_BUSY}
    assert isinstance(users.authenticate(header), Principal)


def test_turns_go_to_who_has_waited_longest() -> None:
    turns, order = _Turns(1, 20), list[int]()
    assert turns.take(0)
    given_back = threading.Event()

    def wait(number: int) -> None:
        assert turns.take(60)
        order.append(number)
        assert given_back.wait(60)
        turns.give_back()

    with ThreadPoolExecutor(20) as threads:
        for number in range(20):
            threads.submit(wait, number)
            while len(turns._waiting) <= number:
                time.sleep(0.001)
        assert not turns.take(0), "nobody else waits"
        turns.give_back()
        # It is already the first one's that waits, whether or not that has noticed.
        assert not turns.take(0)
        given_back.set()
    assert order == list(range(20))
    assert turns.take(0)
    assert not turns.take(0)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Passwords whose check does not end for as long as they are in the set."""
    found: set[str] = set()
    matches = PasswordHash.matches

    def wait(self: PasswordHash, password: str) -> bool:
        while password in found:
            time.sleep(0.001)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", wait)
    yield found
    found.clear()


def settle(users: UsersFile) -> None:
    """Until nothing is checked any more that was put off."""
    while users._checks_put_off:
        time.sleep(0.001)


def test_what_is_put_off_tells_no_names(users: UsersFile, blocked: set[str]) -> None:
    assert users.authenticate(basic("alice", "guess"), "bad") is WRONG_CREDENTIALS
    blocked.add("slow")
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(users.authenticate, basic("alice", "slow"), "bad")
        while not users._guesses:
            time.sleep(0.001)
        for _ in range(3):
            for name in ("alice", "nobody"):
                assert users.authenticate(basic(name, "other"), "bad") is TOO_BUSY
                settle(users)
        # From an address that has guessed nothing it is checked, whatever has been found out meanwhile.
        assert users.authenticate(basic("nobody", "other"), "good") is WRONG_CREDENTIALS
        assert users.recall(basic("alice", "wonder")) is None
        assert users.authenticate(basic("alice", "wonder"), "bad") is TOO_BUSY
        settle(users)
        assert isinstance(users.authenticate(basic("alice", "wonder"), "bad"), Principal)
        blocked.clear()
        assert slow.result() is WRONG_CREDENTIALS
    assert users._guesses == 0


def test_unknown_names_take_no_place_of_a_known_one(users: UsersFile, blocked: set[str]) -> None:
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
        assert set(users._put_off) <= {"", "alice"}
        blocked.remove("0")
        settle(users)
        assert users.recall(basic("alice", "wonder")) is not None
        blocked.clear()
        slow.result()


def test_a_check_that_fails_is_not_the_last_one(
    users: UsersFile, taken: list[None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(authenticator_module, "CHECK_WAIT_S", 0.0)
    header = basic("alice", "wonder")
    with monkeypatch.context() as broken:
        broken.setattr(PasswordHash, "matches", lambda *_: 1 // 0)
        assert users.authenticate(header) is TOO_BUSY
        settle(users)
    assert len(logged(caplog, "registry.access.authenticator")) == len(caplog.records) == 1
    assert users.authenticate(header) is TOO_BUSY
    settle(users)
    assert isinstance(users.recall(header), Principal)


def test_many_guesses_at_once_have_one_turn_after_the_first(users: UsersFile, blocked: set[str]) -> None:
    blocked |= {"guess 0", "guess 1"}
    with ThreadPoolExecutor(CHECKS_MAX + CHECKS_WAITING_MAX) as threads:
        guesses = [
            threads.submit(users.authenticate, basic("alice", f"guess {n}"), "bad")
            for n in range(CHECKS_MAX + CHECKS_WAITING_MAX)
        ]
        while len(users._turns._waiting) < CHECKS_WAITING_MAX:
            time.sleep(0.001)
        blocked.clear()
    answers = [guess.result() for guess in guesses]
    assert answers[:CHECKS_MAX] == [WRONG_CREDENTIALS] * CHECKS_MAX
    assert set(answers[CHECKS_MAX:]) == {TOO_BUSY}
    settle(users)


GUESSERS = 30


@pytest.mark.parametrize(
    ("addresses", "names", "own"),
    [
        (["bad"], ["alice", "nobody"], "good"),
        ([f"bad {n}" for n in range(GUESSERS)], ["alice", "nobody"], "good"),
        (["good"], ["bob", "nobody"], "good"),
        ([f"bad {n}" for n in range(GUESSERS)] + ["good"], ["bob", "nobody"], "good"),
        ([f"2001:db8::{n:x}" for n in range(100_000)], ["alice", "nobody"], "2001:db8:0:1::1"),
    ],
    ids=["one address", "many", "the same", "many and the same", "one network"],
)
def test_guessers_keep_nobody_else_out(
    users: UsersFile,
    users_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    names: list[str],
    own: str,
) -> None:
    """They go on while it is tried: whoever has not guessed is let in at once, others when they come again."""
    users_path.write_text("\n".join(line(name, "wonder") for name in ("alice", "bob")))
    clock.now += 1.1
    header = basic("alice", "wonder")
    ends = threading.Event()
    matches = PasswordHash.matches
    monkeypatch.setattr(PasswordHash, "matches", lambda *check: (time.sleep(0.002), matches(*check))[1])

    def guess(number: int) -> int:
        tries = itertools.count()
        while not ends.is_set():
            tried = next(tries)
            name, password = names[tried % len(names)], f"guess {number} {tried}"
            answer = users.authenticate(basic(name, password), addresses[(number + GUESSERS * tried) % len(addresses)])
            assert answer in (WRONG_CREDENTIALS, TOO_BUSY)
        return next(tries)

    for address in addresses[:GUESSERS] + addresses[-1:]:
        assert users.authenticate(basic(names[0], "guess"), address) in (WRONG_CREDENTIALS, TOO_BUSY)
        users._state.wrong.clear()
    with ThreadPoolExecutor(GUESSERS) as threads:
        guessers = [threads.submit(guess, number) for number in range(GUESSERS)]
        try:
            while len(users._state.wrong) < 10:
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
    settle(users)


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
def test_who_guesses_is_known_by_what_cannot_be_chosen(address: str, network: str) -> None:
    assert _network(address) == network


def test_who_goes_on_guessing_is_not_forgotten_for_others(users: UsersFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator_module, "GUESSERS_MAX", 2)
    for number, address in enumerate(["a", "b", "a", "c"]):
        users.authenticate(basic("alice", f"guess {number}"), address)
    assert list(users._wrong_of) == ["a", "c"]
