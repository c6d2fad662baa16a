"""Protocol messages of the consumer groups of KIP-848, which kafka-python lacks.

The JSON files in this directory contain the fields of Kafka's protocol guide in kafka-python's format.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    pass


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    pass


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    pass


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    @classmethod
    def json_patch(cls, json: dict[str, list[dict[str, list[dict[str, object]]]]]) -> object:
        """Changes `json`, the definition of the message, and returns it: declares a group's authorized operations as a
        bit field, so that kafka-python parses them as a set of numbers, as it does for classic groups."""
        json["fields"][1]["fields"][-1]["type"] = "bitfield"
        return json
