"""Coverage-guided fuzzing of everything that takes octets from a peer (docs/fuzzing.md)."""
