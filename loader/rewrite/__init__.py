"""What is done to files that were published: `expire` takes time partitions away that are old enough, `compact` makes
few files of many (`merge` is its task), `accept_missing` accepts that files are gone, `replay` tries quarantined
messages again, and `backfill` makes files again from the brokers (`closure`: which ones together; `origin`: those of
another log; `reread`: whether what came is what they held). Each is a commit that rewrites time partitions, safe beside
loads, and `retire` removes what was replaced once nobody reads it any more."""
