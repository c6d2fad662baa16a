"""What a run asks the registry: each question once, those that are known ahead several at a time.

After the first question that gets no answer the registry is not asked again in the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from headrace.avro_schema import Schema
from headrace.registry.errors import INCONCLUSIVE_ERRORS, RegistryError, SubjectNotFound

if TYPE_CHECKING:
    from headrace.registry.client import RegisteredSchema

logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)

AT_ONCE = 8
"""Questions under way together: the time of a thousand is then that of 125, and no registry notices eight clients."""


class Registry(Protocol):
    """What is asked of the registry's client, by several threads."""

    def identity(self) -> str: ...

    def versions(self, subject: str) -> Sequence[int]: ...

    def version(self, subject: str, version: int) -> RegisteredSchema: ...

    def schema_by_id(self, schema_id: int) -> RegisteredSchema: ...

    def parsed(self, registered: RegisteredSchema) -> Schema: ...


class Question(Protocol[T_co]):
    """A hashable value, so that the same question is known for the same."""

    def ask(self, registry: Registry) -> T_co: ...


class Identity(NamedTuple):
    """Which registry it is, "" for one that does not say."""

    def ask(self, registry: Registry) -> str:
        return registry.identity()


class Versions(NamedTuple):
    """The version numbers of a subject, ascending; none when it does not exist."""

    subject: str

    def ask(self, registry: Registry) -> tuple[int, ...]:
        try:
            return tuple(sorted(registry.versions(self.subject)))
        except SubjectNotFound:
            return ()


class Version(NamedTuple):
    subject: str
    version: int

    def ask(self, registry: Registry) -> tuple[RegisteredSchema, Schema]:
        registered = registry.version(self.subject, self.version)
        return registered, registry.parsed(registered)


class SchemaOf(NamedTuple):
    schema_id: int

    def ask(self, registry: Registry) -> Schema:
        return registry.parsed(registry.schema_by_id(self.schema_id))


class Asking:
    """The answers of one run."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._answers: dict[tuple[str, Question[Any]], Any] = {}
        self.outage: RegistryError | None = None

    def ahead(self, questions: Iterable[Question[Any]]) -> None:
        """Asks what has not been asked; `answer` then has it."""
        waiting = [one for one in dict.fromkeys(questions) if _key(one) not in self._answers]
        if len(waiting) > 1:
            with ThreadPoolExecutor(min(AT_ONCE, len(waiting))) as pool:
                list(pool.map(self._ask, waiting))

    def answer(self, question: Question[T_co]) -> T_co:
        """
        Raises:
            RegistryError, AvroSchemaError: what the question met, or the outage of an earlier one.
        """
        if _key(question) not in self._answers:
            self._ask(question)
        found = self._answers[_key(question)]
        if isinstance(found, Exception):
            raise found
        answer: T_co = found
        return answer

    def _ask(self, question: Question[Any]) -> None:
        found: Any = self.outage
        if found is None:
            try:
                found = question.ask(self._registry)
            except INCONCLUSIVE_ERRORS as error:
                if self.outage is None:
                    self.outage = error
                    logger.warning("registry_unavailable error=%s", error)
                found = error
            except Exception as error:  # whoever asks for the answer meets it
                found = error
        self._answers[_key(question)] = found


def _key(question: Question[Any]) -> tuple[str, Question[Any]]:
    """Named tuples of two kinds with equal members are equal."""
    return type(question).__name__, question
