"""Why calls are not answered natively, and how often. Implemented in ``declined.pyx``."""

class Declined:
    """Calls declined, by row and reason; native code adds to it."""

    names: list[str | None]
    """What the rows are: procedures of a program, or operations of a COMPOUND."""

    def counted(self) -> list[tuple[str, str, int]]:
        """Row's name, reason and count of whatever has been declined."""
