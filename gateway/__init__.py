"""The HTTP gateway: Confluent's REST Proxy, versions 2 and 3, over Headrace's producer guarantees.

`app` has the routes and `server` serves them. `rest_v2` and `rest_v3` are the two interfaces: each parses its requests
to `OutgoingRecord`s and builds its responses. `encoding` encodes the values that requests contain, with the schemas
that `schemas` finds. `sender` sends them with one producer for all requests. `request_body` and `json_stream` read
bodies within limits. `errors` has the codes.

`rest_v2_consumers` is the part of version 2 for consumers, `rest_v2_metadata` that for brokers, topics and reads by
offset. `consumer_instances` holds the instances, `consumer_polling` reads messages for all of them, `decoding` writes
messages as JSON.
"""
