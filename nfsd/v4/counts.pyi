"""How often each operation of NFSv4 was carried out, natively or not; and which one a COMPOUND is about."""

class OperationCounts:
    """By the operation's number; 0 stands for what is none."""

    def note(self, number: int) -> None:
        """It was carried out, or refused."""

    def weight(self, number: int) -> int:
        """A COMPOUND is about the last of its operations that have the most weight."""

    def all(self) -> dict[int, int]:
        """How often, of those that were carried out at all."""
