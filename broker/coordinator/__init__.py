"""Consumer groups, their committed offsets, and transactions. `group` and `consumer_group` are the state machines of
the two group protocols; `coordinator` runs them and stores their state."""
