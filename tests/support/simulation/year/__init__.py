"""A generated year of a warehouse, loaded by the real loader, and its invariants.

`schemas` evolves records whose values identify their field; `broker` and `registry` simulate the servers, with real
record batches; `story` records the produced messages and their expected results without knowing the loader; `reader`
reads the warehouse like a query; `scripts` are the events; `life` simulates the days.
"""
