"""Compares responses of the gateway with its OpenAPI document."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping

from jsonschema import Draft202012Validator

from headrace.gateway.openapi.document import document

DOCUMENT = document("")
PATHS = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path) for path in DOCUMENT["paths"]]
ERROR = {"$ref": "#/components/schemas/Error"}
STREAM = "/v3/clusters/{cluster}/topics/{topic}/records"


def check_response(method: str, target: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Checks status, media type and body of a response.

    Args:
        method: the method of the request.
        target: its path and query.
        status: the status of the response.
        headers: its headers, with names in lower case.
        content: its body.

    Raises:
        AssertionError: the document does not have such a response.
    """
    path = _path(target)
    if method.lower() not in DOCUMENT["paths"].get(path, {}):
        assert status == (405 if path else 404), (method, target, status)
        _validator(json.dumps(ERROR)).validate(json.loads(content))
        return
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} has the undocumented status {status}: {content[:500]!r}"
    response = responses[str(status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    if "content" not in response:
        assert content == b"", (method, path, status, content)
        return
    media_type = headers["content-type"].partition(";")[0]
    assert media_type in response["content"], (method, path, status, media_type)
    if media_type.endswith("json"):
        validator = _validator(json.dumps(response["content"][media_type]["schema"]))
        for text in content.split(b"\r\n")[:-1] if path == STREAM and status == 200 else [content]:
            validator.validate(json.loads(text))
    for name in response.get("headers", {}):
        assert status == 503 or name.lower() in headers, (method, path, status, name)


def _path(target: str) -> str:
    """Returns the path of the document that a target matches; "" for none."""
    text = target.partition("?")[0]
    text = text if text == "/" else text.removesuffix("/")
    found = [path for pattern, path in PATHS if pattern.fullmatch(text)]
    # A literal path takes precedence, as in the document's rules.
    return min(found, key=lambda path: path.count("{"), default="")


@functools.cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema) | {"components": DOCUMENT["components"]})
