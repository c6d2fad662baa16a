"""Kafka's own programs from Maven Central as child processes: console tools, Streams, Connect, MirrorMaker 2."""

from __future__ import annotations

import signal
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from support.java_oracle import JavaOracle, java_oracle
from support.processes import stop
from support.servers.maven_jars import classpath_of

PATIENCE_S = 120
STOP_TIMEOUT_S = 60
THREADS_TOLD_S = 3
THREADS_CHARACTERS = 100_000
# Quick to start, which is most of what such a program does in a test.
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.o.ref = O
appender.o.type = Console
appender.o.name = O
appender.o.layout.type = PatternLayout
appender.o.layout.pattern = %d %p %c{1} %m%n
"""


def program_jars() -> str:
    """Their classpath."""
    return classpath_of("kafka-programs")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def messages_of(address: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Message]:
    """All of a topic as far as who reads so sees, in the order of each partition."""
    settings = {"bootstrap.servers": address, "group.id": "unused", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[Message] = []
    read_to_the_end: set[int | None] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                read_to_the_end.add(message.partition())
        return len(read_to_the_end) == partitions

    wait_until(is_read, f"{topic} was read")
    consumer.close()
    return found


def properties_file(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
    return path


class JavaProgram:
    """A running program; what it prints and logs is appended to `log`. A context manager, which ends it."""

    def __init__(self, log: Path, classpath: str, main_class: str, *arguments: object) -> None:
        self.log = log
        logging = log.with_suffix(".log4j2.properties")
        logging.write_text(LOGGING, encoding="utf-8")
        command = [*JAVA, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath, main_class, *map(str, arguments)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
            )

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits as long as it runs."""

        def is_so() -> bool:
            assert self._process.poll() is None, f"it ended, before {what}:\n{self.said()[-5000:]}"
            return condition()

        try:
            wait_until(is_so, what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.said()[-5000:]}") from late

    def pause(self) -> None:
        """As if the system gave it no time: what it has sent still arrives."""
        stop(self._process.pid)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ends it as an operator would, and returns its exit code. One that does not end tells what its threads do."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            self._process.send_signal(signal.SIGQUIT)
            time.sleep(THREADS_TOLD_S)
            raise AssertionError(
                f"it did not end within {STOP_TIMEOUT_S} s:\n{self.said()[-THREADS_CHARACTERS:]}"
            ) from late

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a tool: its exit code ("never" where it did not end), what it printed and what it complained of."""

    code: str
    printed: str
    complained: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that is not empty."""
        return [line.split() for line in self.printed.splitlines() if line.strip()]


class Tools:
    """Kafka's command line tools, which all run in one process: `tests/support/java/Tools.java`."""

    def __init__(self, process: JavaOracle, address: str) -> None:
        self._process, self._address = process, address

    def run(self, tool: str, *arguments: str, stdin: str = "") -> Ran:
        """The tool by the name of its class, below `org.apache.kafka.tools` where it has no package, against the
        broker."""
        main_class = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        words = [main_class, stdin, "--bootstrap-server", self._address, *arguments]
        line = "\t".join(b64encode(word.encode()).decode() for word in words)
        code, printed, complained = self._process.ask_line(line).split("\t")
        return Ran(code, b64decode(printed).decode(), b64decode(complained).decode())


@contextmanager
def tools(address: str, cache_dir: Path) -> Iterator[Tools]:
    with java_oracle("Tools", cache_dir, program_jars()) as process:
        yield Tools(process, address)
