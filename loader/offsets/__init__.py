"""Changes next offsets on an operator's request: `choose` builds the commit, `connect_files` and `camus_history` read
the positions of Kafka Connect and Camus. `inspect.offsets` shows next offsets."""
