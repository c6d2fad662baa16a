"""Replicates a registry into the database of a second data centre; the replica is read-only until it is promoted.

`feed` is the source registry's side: requests and responses of `POST /replication`. `replica` polls the source in
rounds, and `update` applies the changes to the replica's database. Ids, versions, and creation times are the same in
both registries; the replica's revisions are its own.
"""
