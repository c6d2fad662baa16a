"""Consumer groups, their offsets, and transactions. `group` and `consumer_group` are state machines; `coordinator`
stores them."""
