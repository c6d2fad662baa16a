"""A generated year in the life of a warehouse. The real loader runs every day, and its results are checked.

`schemas` evolves records whose values show to which field they belong. `broker` and `registry` simulate the servers,
with real record batches. `story` records the produced messages and their expected results without knowing the loader.
`reader` reads the warehouse as a query does, and `judge` compares both. `scripts` and `troubles` are the events. `life`
simulates the days.
"""
