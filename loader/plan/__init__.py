"""Plans a run: `discover` finds topics and offsets, `schemas` fetches schemas from the registry, `ranges` chooses the
next offsets of each partition, `packing` distributes them over tasks, and `load_plan` combines everything."""
