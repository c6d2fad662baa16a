"""The registry's decisions: registration, lookup, compatibility, deletion, configuration and modes."""
