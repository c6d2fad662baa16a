"""Plans a run: `discover` finds topics and offsets, `schemas` fetches schemas from the registry, `ranges` chooses the
offsets to read of each partition, `packing` distributes them over tasks, and `load_plan` combines everything."""
