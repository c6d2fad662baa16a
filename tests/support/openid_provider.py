"""A small OpenID provider: discovery, authorization without a form, tokens signed with a real key, and PKCE."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from flask import Flask, Response, jsonify, redirect, request
from werkzeug.serving import WSGIRequestHandler, make_server

CLIENT_ID = "headrace"
CLIENT_SECRET = "of the console"
KEY_ID = "key-1"


class OpenIdProvider:
    """The provider. Tests change `claims`, which the id token gets besides the usual ones, `key` with which it is
    signed, and `metadata`."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.public = self.key.public_key()
        self.algorithm = "RS256"
        self.issuer = ""
        self.claims: dict[str, Any] = {"sub": "lea", "roles": ["ops"]}
        self.metadata: dict[str, Any] = {}
        self.leaves_out: set[str] = set()
        self.codes: dict[str, dict[str, str]] = {}
        self.issued: list[str] = []

    def app(self) -> Flask:
        app = Flask("provider")
        app.add_url_rule("/.well-known/openid-configuration", view_func=self.configuration)
        app.add_url_rule("/authorize", view_func=self.authorize)
        app.add_url_rule("/token", view_func=self.token, methods=["POST"])
        app.add_url_rule("/jwks", view_func=self.keys)
        return app

    def configuration(self) -> Response:
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        urls = {name: f"{self.issuer}/{path}" for name, path in endpoints.items()}
        return jsonify({"issuer": self.issuer, **urls, **self.metadata})

    def keys(self) -> Response:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.public))
        return jsonify({"keys": [{**public, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]})

    def authorize(self) -> Any:
        """Sends the browser back at once, as a provider does for a user who is signed in there."""
        asked = request.args
        assert (asked["client_id"], asked["response_type"]) == (CLIENT_ID, "code")
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(8)
        self.codes[code] = dict(asked)
        return redirect(f"{asked['redirect_uri']}?code={code}&state={asked['state']}")

    def token(self) -> Any:
        sent, user = request.form, request.authorization
        begun = self.codes.pop(sent["code"], None)
        digest = hashlib.sha256(sent["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_valid = begun is not None and (begun["code_challenge"], begun["redirect_uri"]) == (
            challenge,
            sent["redirect_uri"],
        )
        if not is_valid or user is None or (user.username, user.password) != (CLIENT_ID, CLIENT_SECRET):
            return jsonify({"error": "invalid_grant"}), 400
        assert begun is not None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": begun["nonce"]}
        key: Any = self.key if self.algorithm.startswith("RS") else "" if self.algorithm == "none" else "k" * 32
        id_token = jwt.encode({**claims, **self.claims}, key, self.algorithm, headers={"kid": KEY_ID})
        found = {"access_token": secrets.token_urlsafe(16), "token_type": "Bearer", "id_token": id_token}
        self.issued += found.values()
        return jsonify({name: value for name, value in found.items() if name not in self.leaves_out})


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextmanager
def serve_provider() -> Iterator[OpenIdProvider]:
    """Serves a provider on a free port of loopback."""
    provider = OpenIdProvider()
    server = make_server("127.0.0.1", 0, provider.app(), threaded=True, request_handler=_QuietHandler)
    provider.issuer = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
