"""What docs/registry.md shows is what the programs understand."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.registry.access.passwords import PasswordHash
from headrace.registry.access.permissions import Right, Target
from headrace.registry.access.users import parse_users
from headrace.registry.api.openapi.document import document
from headrace.settings import load_settings
from support.pages import block, page

PAGE = page("docs/registry.md")


def test_the_settings_are_known(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, "# /etc/headrace/headrace.toml"), encoding="utf-8")
    found = load_settings(config=file).registry
    assert (found.workers, str(found.listen), found.users) == (2, "0.0.0.0:8081", "/etc/headrace/users")


def test_the_users_may_do_what_the_page_says() -> None:
    line = str(PasswordHash.of("secret", bytes(16)))
    policy = parse_users(block(PAGE, "# /etc/headrace/users").replace("$scrypt$ln=14,r=8,p=5$…$…", line))
    shop, anonymous = policy.principals["shop"].rights, policy.anonymous.rights
    ours, public = Target.of_subject("shop.orders-value"), Target.of_subject("public.news")
    elsewhere = Target.of_subject(":.eu:shop.orders-value")
    assert shop.allow(Right.WRITE, ours)
    assert not shop.allow(Right.ADMIN, ours)
    assert not shop.allow(Right.WRITE, public)
    assert not shop.allow(Right.WRITE, elsewhere)
    assert shop.allow(Right.READ, elsewhere)
    assert policy.principals["ops"].rights.allow(Right.ADMIN, Target())
    assert anonymous.allow(Right.READ, public)
    assert not anonymous.allow(Right.READ, ours)


def test_every_path_of_the_table_is_served() -> None:
    table = PAGE.partition("## The API\n")[2].partition("\n## ")[0]
    served = set(document("0")["paths"])
    told = [
        path for cell in re.findall(r"^\| (`/.*?`) \|", table, re.MULTILINE) for path in re.findall("`(.+?)`", cell)
    ]
    assert len(told) > 15
    for text in told:
        path = (
            text if text.startswith("/") and not text.startswith(("/version", "/deployment")) else f"/v1/metadata{text}"
        )
        assert {path.replace("[", "").replace("]", ""), re.sub(r"\[.*?\]", "", path)} <= served, text
