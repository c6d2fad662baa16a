"""Simulations for tests: lost power, full disks, faults at every call, interleavings of processes, days and years of
virtual time."""
