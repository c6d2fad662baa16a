"""Changes next offsets on an operator's request: `choose` builds the commit, `connect_files` and `camus_history` read
the offsets that Kafka Connect and Camus had reached. `inspect.offsets` shows next offsets."""
