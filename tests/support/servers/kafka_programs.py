"""Runs Kafka's programs from Maven Central as child processes: console tools, Streams, Connect, MirrorMaker 2."""

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

WAIT_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
THREAD_DUMP_S = 3
THREAD_DUMP_CHARACTERS = 100_000
# Options for a fast start, which takes most of such a program's time in a test.
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
    """Returns the classpath of Kafka's programs."""
    return classpath_of("kafka-programs")


def wait_until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, description
        time.sleep(0.05)


def read_messages(address: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Message]:
    """Returns all messages of a topic that a consumer with this isolation level receives, in order within each
    partition."""
    settings = {"bootstrap.servers": address, "group.id": "unused", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    messages: list[Message] = []
    ended_partitions: set[int | None] = set()

    def is_fully_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended_partitions.add(message.partition())
        return len(ended_partitions) == partitions

    wait_until(is_fully_read, f"{topic} was read")
    consumer.close()
    return messages


def properties_file(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
    return path


class JavaProgram:
    """A running program that appends its output to the file `log`. Used as a context manager, it is ended at the end of
    the context."""

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

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        """Waits for the condition; fails at once if the program ends before."""

        def holds() -> bool:
            assert self._process.poll() is None, f"the program ended before {description}:\n{self.output()[-5000:]}"
            return condition()

        try:
            wait_until(holds, description)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.output()[-5000:]}") from late

    def pause(self) -> None:
        """Stops the program with SIGSTOP; data that it has sent still arrives."""
        stop(self._process.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Terminates the program and returns its exit code. If it does not end, fails with the program's thread
        dump."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            self._process.send_signal(signal.SIGQUIT)
            time.sleep(THREAD_DUMP_S)
            raise AssertionError(
                f"the program did not end within {STOP_TIMEOUT_S} s:\n{self.output()[-THREAD_DUMP_CHARACTERS:]}"
            ) from late

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The exit code ("never" if the tool did not end) and the output of a tool."""

    code: str
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each non-empty line of standard output."""
        return [line.split() for line in self.stdout.splitlines() if line.strip()]


class Tools:
    """Runs Kafka's command-line tools. The program `tests/support/java/Tools.java` runs them all in one process, which
    saves the start of a JVM for each."""

    def __init__(self, process: JavaOracle, address: str) -> None:
        self._process, self._address = process, address

    def run(self, tool: str, *arguments: str, stdin: str = "") -> ToolResult:
        """Runs a command-line tool against the broker and returns its exit code and output.

        Args:
            tool: the class of the tool; a name without package is in `org.apache.kafka.tools`.
        """
        main_class = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        words = [main_class, stdin, "--bootstrap-server", self._address, *arguments]
        line = "\t".join(b64encode(word.encode()).decode() for word in words)
        code, stdout, stderr = self._process.call_line(line).split("\t")
        return ToolResult(code, b64decode(stdout).decode(), b64decode(stderr).decode())


@contextmanager
def tools(address: str, cache_dir: Path) -> Iterator[Tools]:
    with java_oracle("Tools", cache_dir, program_jars()) as process:
        yield Tools(process, address)
