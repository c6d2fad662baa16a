"""Messages of Kafka's protocol that kafka-python does not bring: the consumer groups of KIP-848.

The JSON files beside this module have the fields of Kafka's protocol guide, in the form that kafka-python reads.
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
        """Operations as a set of numbers, as kafka-python has them in the descriptions of classic groups."""
        json["fields"][1]["fields"][-1]["type"] = "bitfield"
        return json
