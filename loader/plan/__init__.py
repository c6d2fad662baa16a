"""What a run will read: `discover` finds topics and offsets, `schemas` asks the registry, `ranges` says which offsets
of which partitions are next, `packing` spreads them over the tasks, and `load_plan` makes one plan of it all."""
