"""What is done to files that were published: `retain` takes buckets away that are old enough, `compact` makes few files
of many (`merge` is its task), `forget` accepts that files are gone. Each is a decision that rewrites buckets, safe
beside loads, and `retire` removes what was replaced once nobody reads it any more."""
