"""The settings, permissions and paths of docs/registry.md are valid."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.registry.access.passwords import PasswordHash
from headrace.registry.access.permissions import Permission, Target
from headrace.registry.access.users import parse_users
from headrace.registry.api.openapi.document import document
from headrace.settings import load_settings
from support.pages import block, page

PAGE = page("docs/registry.md")


def test_settings_of_the_page_load(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, "# /etc/headrace/headrace.toml"), encoding="utf-8")
    found = load_settings(config=file).registry
    assert (found.workers, str(found.listen), found.users) == (2, "0.0.0.0:8081", "/etc/headrace/users")


def test_users_of_the_page_have_the_documented_permissions() -> None:
    line = str(PasswordHash.of("secret", bytes(16)))
    policy = parse_users(block(PAGE, "# /etc/headrace/users").replace("$scrypt$ln=14,r=8,p=5$…$…", line))
    shop, anonymous = policy.principals["shop"].permissions, policy.anonymous.permissions
    own, public = Target.of_subject("shop.orders-value"), Target.of_subject("public.news")
    other_context = Target.of_subject(":.eu:shop.orders-value")
    assert shop.allow(Permission.WRITE, own)
    assert not shop.allow(Permission.ADMIN, own)
    assert not shop.allow(Permission.WRITE, public)
    assert not shop.allow(Permission.WRITE, other_context)
    assert shop.allow(Permission.READ, other_context)
    assert policy.principals["ops"].permissions.allow(Permission.ADMIN, Target())
    assert anonymous.allow(Permission.READ, public)
    assert not anonymous.allow(Permission.READ, own)


def test_every_path_of_the_page_exists() -> None:
    table = PAGE.partition("## The API\n")[2].partition("\n## ")[0]
    served = set(document("0")["paths"])
    paths = [
        path for cell in re.findall(r"^\| (`/.*?`) \|", table, re.MULTILINE) for path in re.findall("`(.+?)`", cell)
    ]
    assert len(paths) > 15
    for text in paths:
        path = (
            text if text.startswith("/") and not text.startswith(("/version", "/deployment")) else f"/v1/metadata{text}"
        )
        assert {path.replace("[", "").replace("]", ""), re.sub(r"\[.*?\]", "", path)} <= served, text
