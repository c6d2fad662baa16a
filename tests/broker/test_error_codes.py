"""The numbers of the error codes, compared with librdkafka's."""

from __future__ import annotations

from confluent_kafka import KafkaError

from headrace.broker.protocol.error_codes import ErrorCode

OLDER_NAMES = {
    "UNKNOWN_SERVER_ERROR": "UNKNOWN",
    "NONE": "NO_ERROR",
    "CORRUPT_MESSAGE": "INVALID_MSG",
    "UNKNOWN_TOPIC_OR_PARTITION": "UNKNOWN_TOPIC_OR_PART",
    "MESSAGE_TOO_LARGE": "MSG_SIZE_TOO_LARGE",
    "INVALID_TOPIC": "TOPIC_EXCEPTION",
    "STORAGE_ERROR": "KAFKA_STORAGE_ERROR",
}
"""librdkafka's names of errors that Kafka has renamed."""

UNKNOWN_TO_LIBRDKAFKA = {"TRANSACTIONAL_ID_NOT_FOUND": 105, "FETCH_SESSION_TOPIC_ID_ERROR": 106}


def test_error_codes_have_the_numbers_of_kafka() -> None:
    # __members__ also has names whose number equals another one's.
    our_codes = {name: code.value for name, code in ErrorCode.__members__.items()}
    assert {name: our_codes.pop(name) for name in UNKNOWN_TO_LIBRDKAFKA} == UNKNOWN_TO_LIBRDKAFKA
    assert {name: KafkaError(number).name() for name, number in our_codes.items()} == {
        name: OLDER_NAMES.get(name, name) for name in our_codes
    }
