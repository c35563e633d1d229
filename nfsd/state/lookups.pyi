"""What native COMPOUNDs ask the state engine. Implemented in ``lookups.pyx``."""

from nfsd.state.engine import StateEngine

class StateLookups:
    """The stateids of READ and WRITE, as :meth:`StateidTable.check_io` has them; of use to native code only."""

    def __init__(self, engine: StateEngine) -> None: ...
