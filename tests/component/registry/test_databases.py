"""Differences between databases do not affect responses."""

from __future__ import annotations

import random
import string
from urllib.parse import quote

from support.cases import all_cases
from support.registry.registry_calls import STRING, RegistryInProcess, RestResponse

NASTY = (
    "\x00",
    "a\x00b",
    "\ud800",
    "\x1f",
    "\u2028",
    "\U0001f600",
    "é",
    "'; DROP TABLE versions; --",
    "%s",
    "a" * 9000,
)


def known(response: RestResponse) -> int:
    """The status of a response that clients understand."""
    assert response.status < 500, response.text
    if response.status >= 400:
        assert set(response.json) == {"error_code", "message"}
    return response.status


def test_any_text_in_a_body_is_stored_or_rejected_alike(registry: RegistryInProcess) -> None:
    with all_cases() as case:
        for text in NASTY:
            with case(text):
                target = '{"type":"fixed","name":"T","size":4}'
                registry.registered("target", target)
                user = '{"type":"array","items":"T"}'
                bodies = [
                    {
                        "schema": f'{{"type":"fixed","name":"N","size":1,"doc":"{len(text)}"}}',
                        "metadata": {"properties": {text: text}},
                    },
                    {"schema": STRING, "metadata": {"tags": {text: [text]}, "sensitive": [text]}},
                    {"schema": user, "references": [{"name": text, "subject": "target", "version": 1}]},
                    {"schema": user, "references": [{"name": "T", "subject": text, "version": 1}]},
                    {
                        "schema": user,
                        "references": [
                            {"name": "T", "subject": "target", "version": 1},
                            {"name": text, "subject": "target", "version": 1},
                        ],
                    },
                    {
                        "schema": STRING,
                        "ruleSet": {"domainRules": [{"name": "r", "doc": text, "params": {text: text}}]},
                    },
                    {"schema": text},
                    {"schema": STRING, "schemaType": text},
                ]
                for number, body in enumerate(bodies):
                    known(registry.post(f"/subjects/nasty-{number}/versions", body))
                    known(registry.post(f"/subjects/nasty-{number}", body))
                for config in (
                    {"alias": text},
                    {"compatibilityGroup": text},
                    {"defaultMetadata": {"properties": {text: text}}},
                    {"compatibility": text},
                ):
                    known(registry.put("/config/nasty-config", config))
                    known(registry.get("/config/nasty-config"))
                    known(registry.register("nasty-config", STRING))
                    known(registry.delete("/config/nasty-config"))


def test_any_text_in_a_path_is_handled_alike(registry: RegistryInProcess) -> None:
    with all_cases() as case:
        for text in NASTY:
            with case(text):
                name = quote(text, safe="", errors="surrogatepass")
                for subject in (name, f":.{name}:s", f":.c:{name}"):
                    statuses = {
                        known(registry.register(subject, STRING)),
                        known(registry.get(f"/subjects/{subject}/versions")),
                        known(registry.get(f"/subjects/{subject}/versions/latest")),
                        known(registry.post(f"/subjects/{subject}", {"schema": STRING})),
                        known(registry.put(f"/config/{subject}", {"compatibility": "NONE"})),
                        known(registry.get(f"/config/{subject}")),
                        known(registry.put(f"/mode/{subject}", {"mode": "READWRITE"})),
                        known(registry.get(f"/mode/{subject}")),
                        known(registry.get(f"/subjects?subjectPrefix={subject}")),
                        known(registry.get(f"/schemas/ids/1?subject={subject}")),
                        known(registry.delete(f"/mode/{subject}")),
                        known(registry.delete(f"/subjects/{subject}")),
                        known(registry.delete(f"/subjects/{subject}?permanent=true")),
                    }
                    assert statuses & {200, 422}
                known(registry.get(f"/contexts/{name}/subjects"))
                known(registry.delete(f"/contexts/{name}"))


def test_long_names_are_rejected_before_they_exceed_an_index(registry: RegistryInProcess) -> None:
    chance = random.Random(1)
    for length in (500, 1_300, 1_301, 2_700, 10_000, 60_000):
        # Random, because an index may compress its entries.
        name = "".join(chance.choices(string.ascii_letters + string.digits, k=length))
        expected = 200 if length <= 1_300 else 422
        assert known(registry.register(name, STRING)) == expected
        assert known(registry.put(f"/config/{name}", {"compatibility": "NONE"})) == expected
        assert known(registry.put(f"/mode/{name}", {"mode": "READWRITE"})) == expected
        # The dot of a context counts too.
        assert known(registry.register(f":.{name[1:]}:{name}", STRING)) == expected
        reference = {"name": "N", "subject": name, "version": 1}
        assert known(registry.register(f":.{name[1:]}:user", STRING, references=[reference])) == expected


def test_subjects_are_sorted_by_code_points(registry: RegistryInProcess) -> None:
    names = ["sort-B", "sort-a", "sort-_", "sort-Z", "sort-é", "sort-10", "sort-9"]
    for name in names:
        registry.registered(name, STRING)
    assert registry.get("/subjects?subjectPrefix=sort-").json == sorted(names)
    listed = registry.get("/schemas?subjectPrefix=sort-").json
    assert [item["subject"] for item in listed] == sorted(names)


def test_schema_of_a_megabyte_is_stored(registry: RegistryInProcess) -> None:
    text = f'{{"type":"record","name":"Big","doc":"{"x" * 1_000_000}","fields":[]}}'
    schema_id = registry.registered("big", text)
    assert registry.get(f"/schemas/ids/{schema_id}").json["schema"] == text
    assert registry.registered("big", text) == schema_id
