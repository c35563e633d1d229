"""What native COMPOUNDs ask the state engine. Implemented in ``direct.pyx``."""

from nfsd.state.engine import StateEngine

class DirectState:
    """SEQUENCE and the stateids of READ and WRITE, as :meth:`SessionTable.sequence` and :meth:`StateidTable.check_io`
    have them; of use to native code only."""

    def __init__(self, engine: StateEngine) -> None: ...
