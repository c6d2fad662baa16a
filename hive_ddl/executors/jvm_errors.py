"""Extracts one-line reasons from JVM exceptions."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

METASTORE_FAILURES = (Py4JError,)
CAUSES_MAX = 20  # longer than any chain; ends a cycle

STACK_FRAME = re.compile(r"^\s*at [\w.$/<>-]+\(.*\)$", re.MULTILINE)
OLD_CLIENT_METHOD = re.compile(r"Invalid method name: '(\w+)'")


def java_class(error: Py4JError) -> str:
    """Returns the simple class name of the Java exception, "" if the error contains none, such as after the end of the
    JVM."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getSimpleName())
    return ""


def root_cause(error: Py4JError) -> str:
    """Returns the reason of an error in one line: usually the message of its innermost cause.

    The outer causes say only that something could not be instantiated or that retries were exhausted. An ended JVM and
    a metastore that does not support a call have reasons of their own, with the remedy.
    """
    if isinstance(error, Py4JNetworkError):
        return "Spark's JVM has ended; see logs/spark.log in the data directory"
    if not isinstance(error, Py4JJavaError):
        return one_line(str(error))
    cause = error.java_exception
    texts = []
    for _ in range(CAUSES_MAX):
        message = cause.getMessage()
        texts.append(one_line(message) if message else str(cause.getClass().getSimpleName()))
        inner = cause.getCause()
        if inner is None or inner.equals(cause):
            break
        cause = inner
    old = next((match for text in texts if (match := OLD_CLIENT_METHOD.search(text))), None)
    if old is not None:
        return (
            f"it does not support the call {old[1]}, so it is Hive 4 or newer; set hive.executor to the "
            "hive://host:port of its HiveServer2, or hive.metastore to a metastore of Hive 2.3 to 3.1"
        )
    return next((text for text in reversed(texts) if text), "no reason given")


def one_line(text: str) -> str:
    """Returns a text in one line, without the stack traces that servers such as a NameNode add to their messages."""
    return " ".join(STACK_FRAME.sub("", text).split())
