"""The C core: sources, their build, and `library`, by which Python calls them. README.md says how it is shaped."""
