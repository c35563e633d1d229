"""A provider in memory, for tests of everything above it."""
