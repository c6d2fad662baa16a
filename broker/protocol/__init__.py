"""Wire format of the broker: served API versions, frames, and the hand-written codecs of frequent requests."""
