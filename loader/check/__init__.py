"""What came back and may be decided: `settle` finds the prefix of each partition that is whole, `doubts` the reasons
to hold a topic back, and `offer` makes a decision of the rest."""
