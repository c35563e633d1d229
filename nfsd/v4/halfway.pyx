"""COMPOUNDs that change hands: native operations have begun them, those in Python go on (contract: ``halfway.pyi``).

Owns :class:`Halfway`, made by :mod:`nfsd.v4.direct_compound` and taken up by :mod:`nfsd.v4.compound`. The slot that the
COMPOUND holds goes along, and is given back if nobody takes it.
"""


cdef class Halfway:
    def take_slot(self):
        slot, self.slot = self.slot, None
        return slot

    def __del__(self):
        if self.slot is not None:
            # Not as it was: something may have been done.
            self.slot.finish(None)
