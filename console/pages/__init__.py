"""The pages of the console, one module each, and the table of all of them.

A page is a module with a blueprint `blueprint` whose endpoint `page` returns the page, and a template. A page about one
topic takes the topic as the argument `topic` of that endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flask import Blueprint

from headrace.console.pages import (
    actions,
    alerts,
    find,
    health,
    hive_table,
    hive_tables,
    loads,
    messages,
    metrics,
    now,
    partitions,
    quarantine,
    schema_diff,
    schema_try,
    schemas,
    sign_in,
    subject,
    system,
    topic,
    topics,
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `menu` are its words in the menu of all pages, and `topic_tab` its words in the tabs of a topic; "" if it
    is not in them. `section` names the entry of the menu that a page belongs to."""

    blueprint: Blueprint
    menu: str = ""
    topic_tab: str = ""
    section: str = ""

    @property
    def endpoint(self) -> str:
        return f"{self.blueprint.name}.page"


PAGES: Final = (
    Page(now.blueprint, menu="Now"),
    Page(topics.blueprint, menu="Topics"),
    Page(topic.blueprint, topic_tab="Completeness", section="Topics"),
    Page(partitions.blueprint, topic_tab="Partitions", section="Topics"),
    Page(messages.blueprint, topic_tab="Messages", section="Topics"),
    Page(schemas.blueprint, menu="Schemas"),
    Page(subject.blueprint, section="Schemas"),
    Page(schema_diff.blueprint, section="Schemas"),
    Page(schema_try.blueprint, section="Schemas"),
    Page(loads.blueprint, menu="Loads"),
    Page(quarantine.blueprint, menu="Quarantine"),
    Page(hive_tables.blueprint, menu="Tables"),
    Page(hive_table.blueprint, topic_tab="Table", section="Tables"),
    Page(find.blueprint, menu="Find"),
    Page(alerts.blueprint, menu="Alerts"),
    Page(actions.blueprint, menu="Actions"),
    Page(system.blueprint, menu="System"),
    Page(sign_in.blueprint),
    Page(health.blueprint),
    Page(metrics.blueprint),
)
"""All pages, in the order of the menu and of the tabs."""
