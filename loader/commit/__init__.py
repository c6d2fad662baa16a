"""The decision log, on which exactly-once rests: `decision_log` puts a `decision` into the next slot if it is free and
`conflict` finds nothing against it; `state` is what all decisions add up to. Imports no other stage."""
