"""Bearer tokens: which are believed, and what their bearers may do."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from headrace.registry.access.authenticator import UsersFile
from headrace.registry.access.needs import NO_CREDENTIALS, WRONG_CREDENTIALS, WRONG_TOKEN
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.rights import Right, Target
from headrace.registry.access.tokens import KEYS_AGE_S, LEEWAY_S, REFRESH_S, TokenKeys, TokenRefused, TokenRules, Tokens
from headrace.registry.access.users import Principal, UsersFileInvalid, parse_users, user_line
from headrace.registry.errors import TokenKeysUnusable
from support.cases import all_cases
from support.golden import case_lines, golden

ISSUER, AUDIENCE = "https://id.example.com/", "registry"
NOW = time.time()
LIFE_S = 86_400  # no test runs so late after this file was read that a token is over by then
RULES = TokenRules(ISSUER, AUDIENCE)
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def public(algorithm: str, key: Any, key_id: str) -> dict[str, Any]:
    found: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": key_id, "alg": algorithm, "use": "sig"}


def key_set(**keys: Any) -> str:
    return json.dumps({"keys": [public(algorithm, key, algorithm) for algorithm, key in keys.items()]})


def token(algorithm: str = "ES256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + LIFE_S, "sub": "shop", "roles": ["team"], **claims}
    said = {name: value for name, value in said.items() if value is not None}
    named = {"kid": algorithm} if header is None else header
    return jwt.encode(said, KEYS[algorithm] if key is None else key, algorithm=algorithm, headers=named)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(key_set(**KEYS))
    return path


@pytest.fixture
def tokens(keys_file: Path) -> Tokens:
    return Tokens(TokenKeys(str(keys_file)), RULES)


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_the_issuer_is_believed(tokens: Tokens, algorithm: str) -> None:
    found = tokens.bearer(token(algorithm, aud=["other", AUDIENCE]))
    assert (found.name, found.roles, found.expires_s) == ("shop", ("team",), NOW + LIFE_S + LEEWAY_S)


def test_a_token_that_names_no_key_means_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set(ES256=KEYS["ES256"]))
    assert Tokens(TokenKeys(str(path)), RULES).bearer(token(header={})).name == "shop"
    path.write_text(key_set(ES256=KEYS["ES256"], EdDSA=KEYS["EdDSA"]))
    with pytest.raises(TokenRefused) as refused:
        Tokens(TokenKeys(str(path)), RULES).bearer(token(header={}))
    assert refused.value.__cause__ is None


def unsigned() -> str:
    parts = ({"alg": "none", "kid": "ES256"}, {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + LIFE_S, "sub": "shop"})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""])


def test_others_are_refused(tokens: Tokens) -> None:
    # A public key as the secret of a signature that whoever knows it could make.
    by_public_key = jwt.encode({"sub": "x"}, "x" * 32, algorithm="HS256", headers={"kid": "RS256"})
    cases: dict[str, tuple[str, type[Exception] | None]] = {
        "other key": (token(key=OTHER_KEY), jwt.InvalidSignatureError),
        "unknown key id": (token(header={"kid": "unknown"}), None),
        "no key id": (token(header={}), None),
        "expired": (token(exp=NOW - LEEWAY_S - 60), jwt.ExpiredSignatureError),
        "not yet valid": (token(nbf=NOW + LEEWAY_S + LIFE_S), jwt.ImmatureSignatureError),
        "no expiry": (token(exp=None), jwt.MissingRequiredClaimError),
        "other audience": (token(aud="another"), jwt.InvalidAudienceError),
        "no audience": (token(aud=None), jwt.MissingRequiredClaimError),
        "other issuer": (token(iss="https://id.example.org/"), jwt.InvalidIssuerError),
        "no issuer": (token(iss=None), jwt.MissingRequiredClaimError),
        "empty user": (token(sub=""), None),
        "no user": (token(sub=None), None),
        "algorithm of another key": (token("RS256", header={"kid": "ES256"}), jwt.InvalidTokenError),
        "signed by a public key": (by_public_key, jwt.InvalidTokenError),
        "unsigned": (unsigned(), jwt.InvalidTokenError),
        "empty": ("", jwt.DecodeError),
        "no token": ("a.b.c", jwt.DecodeError),
        "changed signature": (token()[:-4] + "AAAA", jwt.InvalidSignatureError),
    }
    with all_cases() as case:
        for name, (made, cause) in cases.items():
            with case(name):
                with pytest.raises(TokenRefused) as refused:
                    tokens.bearer(made)
                found = refused.value.__cause__
                assert found is None if cause is None else isinstance(found, cause)


def test_shared_secrets_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "alg": "HS256"}
    path.write_text(json.dumps({"keys": [secret]}))
    with pytest.raises(TokenKeysUnusable, match=str(path)):
        TokenKeys(str(path))
    path.write_text(json.dumps({"keys": [secret, public("ES256", KEYS["ES256"], "ES256")]}))
    tokens = Tokens(TokenKeys(str(path)), RULES)
    with pytest.raises(TokenRefused):
        tokens.bearer(token("HS256", key=b"x" * 32, header={"kid": "s"}))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keys": 1}', '{"keys": []}', "keys"])
def test_a_file_without_keys_is_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(TokenKeysUnusable, match=str(path)):
        TokenKeys(str(path))
    with pytest.raises(TokenKeysUnusable, match=str(tmp_path / "missing")):
        TokenKeys(str(tmp_path / "missing"))


def test_a_new_key_is_looked_for_but_not_for_every_token(keys_file: Path) -> None:
    now = 0.0
    keys_file.write_text(key_set(ES256=KEYS["ES256"]))
    tokens = Tokens(TokenKeys(str(keys_file), clock=lambda: now), RULES)
    keys_file.write_text(key_set(EdDSA=KEYS["EdDSA"]))
    with pytest.raises(TokenRefused):
        tokens.bearer(token("EdDSA"))
    tokens.bearer(token())
    now = REFRESH_S
    tokens.bearer(token("EdDSA"))
    with pytest.raises(TokenRefused):
        tokens.bearer(token())
    # What cannot be read leaves the keys that there are, and one that was withdrawn serves for an hour at most.
    keys_file.write_text("")
    now = REFRESH_S + KEYS_AGE_S
    tokens.bearer(token("EdDSA"))
    keys_file.write_text(key_set(ES256=KEYS["ES256"]))
    now += KEYS_AGE_S
    with pytest.raises(TokenRefused):
        tokens.bearer(token("EdDSA"))


@pytest.mark.parametrize(
    ("claim", "value", "roles"),
    [
        ("roles", ["a", 1, "b"], ("a", "b")),
        ("scope", "a b", ("a", "b")),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ("a",)),
        ("https://example.com/roles", ["a"], ("a",)),
        ("roles", {"a": 1}, ()),
        ("nothing.there", 1, ()),
    ],
)
def test_where_roles_stand(keys_file: Path, claim: str, value: Any, roles: tuple[str, ...]) -> None:
    tokens = Tokens(TokenKeys(str(keys_file)), TokenRules(ISSUER, AUDIENCE, roles_claim=claim))
    more = value if claim == "realm_access.roles" else {claim: value}
    assert tokens.bearer(token(**{"roles": None, **more})).roles == roles


USERS = "\n".join(
    [
        user_line("ops", PasswordHash.of("open", b"salt", Cost(log2_n=4, r=1, p=1))),
        "user shop -",
        "certificate shop CN=shop,O=The%20Shop",
        "grant ops admin *",
        "grant shop write shop.*",
        "grant * read *",
        "grant @team write team.*",
        "grant @boss admin *",
    ]
)


@pytest.fixture
def users(tmp_path: Path, tokens: Tokens) -> UsersFile:
    (tmp_path / "users").write_text(USERS)
    return UsersFile(tmp_path / "users", tokens=tokens, now_s=lambda: NOW)


def may(principal: object, right: Right, subject: str) -> bool:
    assert isinstance(principal, Principal), principal
    return principal.rights.allow(right, Target.of_subject(subject))


def test_a_bearer_has_the_rights_of_its_roles_and_of_its_name(users: UsersFile) -> None:
    header = f"Bearer {token()}"
    assert users.recall(header) is None
    found = users.authenticate(header)
    assert users.recall(header) is found
    assert may(found, Right.WRITE, "team.a")
    assert may(found, Right.WRITE, "shop.a")
    assert may(found, Right.READ, "other")
    assert not may(found, Right.WRITE, "other")
    stranger = users.authenticate(f"bearer {token(sub='stranger')}")
    assert may(stranger, Right.WRITE, "team.a")
    # Of the file alone is what every user of the file may do.
    assert not may(stranger, Right.READ, "other")
    nobody = users.authenticate(f"Bearer {token(sub='stranger', roles=['nothing'])}")
    assert isinstance(nobody, Principal)
    assert nobody.rights.granted == ()


def test_a_token_ends_when_it_says_so(tmp_path: Path, tokens: Tokens) -> None:
    now = NOW
    (tmp_path / "users").write_text(USERS)
    users = UsersFile(tmp_path / "users", tokens=tokens, now_s=lambda: now)
    header = f"Bearer {token()}"
    users.authenticate(header)
    now = NOW + LIFE_S + LEEWAY_S + 1
    assert users.recall(header) is None
    assert users.authenticate(f"Bearer {token(exp=NOW - LEEWAY_S - 60)}") is WRONG_TOKEN


def test_a_role_that_lost_its_grant_has_lost_it(tmp_path: Path, tokens: Tokens) -> None:
    now = 0.0
    path = tmp_path / "users"
    path.write_text(USERS)
    users = UsersFile(path, clock=lambda: now, tokens=tokens)
    header = f"Bearer {token()}"
    assert may(users.authenticate(header), Right.WRITE, "team.a")
    path.write_text(USERS.replace("grant @team write team.*", ""))
    now = 10.0
    assert not may(users.authenticate(header), Right.WRITE, "team.a")


def test_tokens_are_nobody_s_without_keys(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(USERS)
    users = UsersFile(tmp_path / "users")
    assert users.authenticate(f"Bearer {token()}") is WRONG_CREDENTIALS
    assert not users.takes_tokens


def test_a_certificate_stands_for_its_user_unless_somebody_else_is_named(users: UsersFile) -> None:
    subject = "CN=shop,O=The Shop"
    assert users.recall(None, subject) is users.authenticate(None, "", subject)
    assert may(users.recall(None, subject), Right.WRITE, "shop.a")
    assert users.recall(None, "CN=shop") is users.recall(None)
    header = "Basic " + base64.b64encode(b"ops:open").decode()
    assert may(users.authenticate(header, "", subject), Right.ADMIN, "other")
    assert users.authenticate("Basic x", "", subject) is WRONG_CREDENTIALS


def test_a_user_without_a_password_has_none_that_is_right(users: UsersFile) -> None:
    for password in ("", "-", "shop"):
        header = "Basic " + base64.b64encode(f"shop:{password}".encode()).decode()
        assert users.authenticate(header) is WRONG_CREDENTIALS
    assert users.authenticate(None) is not NO_CREDENTIALS


def test_errors_of_roles_and_certificates_in_a_users_file_name_the_line() -> None:
    texts = {
        "role as a user": "user @team -",
        "certificate of no user": "certificate nobody CN=a",
        "certificate twice": "user a -\ncertificate a CN=a\ncertificate a CN=a",
        "certificate without subject": "certificate a",
    }
    messages = {}
    for case, text in texts.items():
        with pytest.raises(UsersFileInvalid) as refused:
            parse_users(USERS + "\n" + text)
        messages[case] = str(refused.value)
    found = case_lines(messages.items())
    assert found == golden("messages/registry_users_file_roles.txt", found)
