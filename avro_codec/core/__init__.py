"""The C core: its sources, its build, and `library`, the ctypes interface. README.md describes the design."""
