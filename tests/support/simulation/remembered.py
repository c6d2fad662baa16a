"""Caches for simulations, which call pure functions thousands of times with the same arguments."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

from headrace.audit.storage import engine
from headrace.avro_schema import parse_schema
from headrace.loader.commit.document import read_document
from headrace.loader.load_schema.kafka_record import load_schema_with_kafka

PURE_FUNCTIONS: tuple[Callable[..., Any], ...] = (load_schema_with_kafka, parse_schema, read_document)
"""The functions whose results are cached. They return immutable values or text."""

RESULTS_MAX = 4096  # of each function


def remember_results(patch: pytest.MonkeyPatch) -> None:
    """Replaces the functions in all modules that import them by cached ones. Also reads only once which release is
    installed.

    Python 3.11 lists the attributes of a protocol again for each `isinstance`; this is cached too, as later releases
    do.
    """
    if sys.version_info < (3, 12):
        patch.setattr(typing, "_get_protocol_attrs", functools.cache(typing._get_protocol_attrs))
    patch.setattr(importlib.metadata, "version", functools.cache(importlib.metadata.version))
    ours = [module for name, module in sys.modules.items() if name.startswith("headrace.")]
    for plain in PURE_FUNCTIONS:
        remembering = functools.lru_cache(maxsize=RESULTS_MAX)(plain)
        for module in ours:
            if getattr(module, plain.__name__, None) is plain:
                patch.setattr(module, plain.__name__, remembering)


def keep_journal_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Makes the audit database keep its journal in memory, which saves two files for each opened database. No
    simulation interrupts a transaction of this database."""
    patch.setattr(
        engine, "_use_write_ahead_log", lambda connection: connection.execute("PRAGMA journal_mode = MEMORY").fetchone()
    )
