"""Sessions: a client numbers the records of a source, and each record is stored exactly once, in order.

Sources hash onto lanes. One gateway owns a lane at a time, and `lane_log` makes sure that no other can write for it.
`sources` is the state of a lane, `lane` serves it in a `lane_thread`, `lane_owner` shares the lanes among the gateways,
`chunk_body` parses the bodies of requests, and `routes` is the HTTP interface.
"""
