"""What the registry decides, one module per question: registration, lookup, compatibility, deletion, configuration."""
