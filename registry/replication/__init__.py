"""A registry that holds what another one does, read-only, until it is promoted: for a second data centre.

`feed` is what the one tells the other (`POST /follow`), `replica` asks, in rounds, and `apply_update` brings the follower's
database to what was told. Ids, versions, revisions of nothing else and times stay as they are there.
"""
