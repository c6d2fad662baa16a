"""Support code for tests of the loader: warehouses with fake or real servers ("worlds"), independent computations of
the expected rows ("oracles"), storages, and fuzzers of the C core."""
