"""Which edition of the exports' answers is current. Implemented in ``edition.pyx``."""

class Edition:
    """Of what exports say about callers: who keeps an answer keeps the edition's number with it."""

    number: int
    """Grows when what has been said before may be true no more."""
    ages: bool
    """Whether an answer is to be asked for again every second: name services are behind it."""
