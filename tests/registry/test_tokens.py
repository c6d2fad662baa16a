"""Bearer tokens and client certificates: verification, roles and permissions."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.permissions import Permission, Target
from headrace.registry.access.required_permissions import NO_CREDENTIALS, WRONG_CREDENTIALS, WRONG_TOKEN
from headrace.registry.access.tokens import (
    KEYS_AGE_S,
    LEEWAY_S,
    REFRESH_S,
    TokenKeys,
    TokenRejected,
    TokenRules,
    TokenVerifier,
)
from headrace.registry.access.users import Principal, UsersFileInvalid, parse_users, user_line
from headrace.registry.errors import TokenKeysUnusable
from support.cases import all_cases
from support.golden import case_lines, golden

ISSUER, AUDIENCE = "https://id.example.com/", "registry"
NOW = time.time()
LIFE_S = 86_400  # long enough that no token expires while the tests run
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
    all_claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + LIFE_S, "sub": "shop", "roles": ["team"], **claims}
    all_claims = {name: value for name, value in all_claims.items() if value is not None}
    headers = {"kid": algorithm} if header is None else header
    return jwt.encode(all_claims, KEYS[algorithm] if key is None else key, algorithm=algorithm, headers=headers)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(key_set(**KEYS))
    return path


@pytest.fixture
def tokens(keys_file: Path) -> TokenVerifier:
    return TokenVerifier(TokenKeys(str(keys_file)), RULES)


@pytest.mark.parametrize("algorithm", KEYS)
def test_token_of_the_issuer_is_accepted(tokens: TokenVerifier, algorithm: str) -> None:
    found = tokens.verify(token(algorithm, aud=["other", AUDIENCE]))
    assert (found.name, found.roles, found.expires_s) == ("shop", ("team",), NOW + LIFE_S + LEEWAY_S)


def test_token_without_key_id_uses_the_only_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set(ES256=KEYS["ES256"]))
    assert TokenVerifier(TokenKeys(str(path)), RULES).verify(token(header={})).name == "shop"
    path.write_text(key_set(ES256=KEYS["ES256"], EdDSA=KEYS["EdDSA"]))
    with pytest.raises(TokenRejected) as refused:
        TokenVerifier(TokenKeys(str(path)), RULES).verify(token(header={}))
    assert refused.value.__cause__ is None


def unsigned() -> str:
    parts = ({"alg": "none", "kid": "ES256"}, {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + LIFE_S, "sub": "shop"})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""])


def test_invalid_tokens_are_rejected(tokens: TokenVerifier) -> None:
    # Signed with a public key as the shared secret, which any client could do.
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
                with pytest.raises(TokenRejected) as refused:
                    tokens.verify(made)
                found = refused.value.__cause__
                assert found is None if cause is None else isinstance(found, cause)


def test_symmetric_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "alg": "HS256"}
    path.write_text(json.dumps({"keys": [secret]}))
    with pytest.raises(TokenKeysUnusable, match=str(path)):
        TokenKeys(str(path))
    path.write_text(json.dumps({"keys": [secret, public("ES256", KEYS["ES256"], "ES256")]}))
    tokens = TokenVerifier(TokenKeys(str(path)), RULES)
    with pytest.raises(TokenRejected):
        tokens.verify(token("HS256", key=b"x" * 32, header={"kid": "s"}))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keys": 1}', '{"keys": []}', "keys"])
def test_key_file_without_keys_raises_token_keys_unusable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(TokenKeysUnusable, match=str(path)):
        TokenKeys(str(path))
    with pytest.raises(TokenKeysUnusable, match=str(tmp_path / "missing")):
        TokenKeys(str(tmp_path / "missing"))


def test_keys_are_reloaded_for_unknown_ids_but_not_for_every_token(keys_file: Path) -> None:
    now = 0.0
    keys_file.write_text(key_set(ES256=KEYS["ES256"]))
    tokens = TokenVerifier(TokenKeys(str(keys_file), clock=lambda: now), RULES)
    keys_file.write_text(key_set(EdDSA=KEYS["EdDSA"]))
    with pytest.raises(TokenRejected):
        tokens.verify(token("EdDSA"))
    tokens.verify(token())
    now = REFRESH_S
    tokens.verify(token("EdDSA"))
    with pytest.raises(TokenRejected):
        tokens.verify(token())
    # An unusable key set leaves the previous keys in use. A withdrawn key is accepted for an hour at most.
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"}
    for unusable in ("", json.dumps({"keys": [secret]})):
        keys_file.write_text(unusable)
        now += KEYS_AGE_S
        tokens.verify(token("EdDSA"))
    keys_file.write_text(key_set(ES256=KEYS["ES256"]))
    now += KEYS_AGE_S
    with pytest.raises(TokenRejected):
        tokens.verify(token("EdDSA"))


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
def test_roles_are_read_from_the_configured_claim(
    keys_file: Path, claim: str, value: Any, roles: tuple[str, ...]
) -> None:
    tokens = TokenVerifier(TokenKeys(str(keys_file)), TokenRules(ISSUER, AUDIENCE, roles_claim=claim))
    more = value if claim == "realm_access.roles" else {claim: value}
    assert tokens.verify(token(**{"roles": None, **more})).roles == roles


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
def users(tmp_path: Path, tokens: TokenVerifier) -> RegistryUsersFile:
    (tmp_path / "users").write_text(USERS)
    return RegistryUsersFile(tmp_path / "users", tokens=tokens, now_s=lambda: NOW)


def may(principal: object, permission: Permission, subject: str) -> bool:
    assert isinstance(principal, Principal), principal
    return principal.permissions.allow(permission, Target.of_subject(subject))


def test_token_has_the_permissions_of_its_roles_and_its_user(users: RegistryUsersFile) -> None:
    header = f"Bearer {token()}"
    assert users.cached_principal(header) is None
    found = users.authenticate(header)
    assert users.cached_principal(header) is found
    assert may(found, Permission.WRITE, "team.a")
    assert may(found, Permission.WRITE, "shop.a")
    assert may(found, Permission.READ, "other")
    assert not may(found, Permission.WRITE, "other")
    not_in_file = users.authenticate(f"bearer {token(sub='guest')}")
    assert may(not_in_file, Permission.WRITE, "team.a")
    # `grant *` applies to users of the file only.
    assert not may(not_in_file, Permission.READ, "other")
    without_roles = users.authenticate(f"Bearer {token(sub='guest', roles=['nothing'])}")
    assert isinstance(without_roles, Principal)
    assert without_roles.permissions.grants == ()


def test_cached_token_expires(tmp_path: Path, tokens: TokenVerifier) -> None:
    now = NOW
    (tmp_path / "users").write_text(USERS)
    users = RegistryUsersFile(tmp_path / "users", tokens=tokens, now_s=lambda: now)
    header = f"Bearer {token()}"
    users.authenticate(header)
    now = NOW + LIFE_S + LEEWAY_S + 1
    assert users.cached_principal(header) is None
    assert users.authenticate(f"Bearer {token(exp=NOW - LEEWAY_S - 60)}") is WRONG_TOKEN


def test_removed_grant_of_a_role_takes_effect(tmp_path: Path, tokens: TokenVerifier) -> None:
    now = 0.0
    path = tmp_path / "users"
    path.write_text(USERS)
    users = RegistryUsersFile(path, clock=lambda: now, tokens=tokens)
    header = f"Bearer {token()}"
    assert may(users.authenticate(header), Permission.WRITE, "team.a")
    path.write_text(USERS.replace("grant @team write team.*", ""))
    now = 10.0
    assert not may(users.authenticate(header), Permission.WRITE, "team.a")


def test_tokens_are_rejected_without_configured_keys(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(USERS)
    users = RegistryUsersFile(tmp_path / "users")
    assert users.authenticate(f"Bearer {token()}") is WRONG_CREDENTIALS
    assert not users.accepts_tokens


def test_certificate_authenticates_its_user_unless_there_is_a_header(users: RegistryUsersFile) -> None:
    subject = "CN=shop,O=The Shop"
    assert users.cached_principal(None, subject) is users.authenticate(None, "", subject)
    assert may(users.cached_principal(None, subject), Permission.WRITE, "shop.a")
    assert users.cached_principal(None, "CN=shop") is users.cached_principal(None)
    header = "Basic " + base64.b64encode(b"ops:open").decode()
    assert may(users.authenticate(header, "", subject), Permission.ADMIN, "other")
    assert users.authenticate("Basic x", "", subject) is WRONG_CREDENTIALS


def test_user_without_hash_has_no_valid_password(users: RegistryUsersFile) -> None:
    for password in ("", "-", "shop"):
        header = "Basic " + base64.b64encode(f"shop:{password}".encode()).decode()
        assert users.authenticate(header) is WRONG_CREDENTIALS
    assert users.authenticate(None) is not NO_CREDENTIALS


def test_users_file_errors_about_roles_and_certificates_name_the_line() -> None:
    texts = {
        "role as a user": "user @team -",
        "certificate of no user": "certificate nobody CN=a",
        "certificate of anonymous": "certificate anonymous CN=a",
        "certificate of every user": "certificate * CN=a",
        "certificate of a role": "certificate @team CN=a",
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
