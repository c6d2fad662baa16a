"""A generated year in the life of a warehouse, loaded by the real loader, and what must hold of it.

`schemas` evolves records whose values say where they belong; `broker` and `registry` stand in for the servers, with
real record batches; `story` keeps what was produced and what must become of it, and knows nothing of the loader;
`reader` reads the warehouse as a query would; `scripts` are the things that happen; `life` goes through the days.
"""
