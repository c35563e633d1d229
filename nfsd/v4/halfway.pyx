"""COMPOUNDs that stand between two operations: they wait, or change hands (contract: ``halfway.pyi``).

Owns :class:`Halfway`, made by :mod:`nfsd.v4.under_way`, and taken up there when what an operation waits for has come, or where
there is more room. The slot that the COMPOUND holds goes along, and is given back if nobody takes it.
"""


cdef class Halfway:
    @property
    def changed(self):
        return self.altered or self.going

    cdef Slot take_slot(self):
        """The slot, which is to be finished by who takes it."""
        slot, self.slot = self.slot, None
        return slot

    def give_back(self):
        if self.slot is not None and not self.changed:
            self.slot.withdraw()
            self.slot = None

    def __del__(self):
        if self.turn is not None:
            self.turn.abandon()
        if self.slot is not None:
            # Not as it was: something may have been done, or answered.
            self.slot.finish(None)
        for _, payload in self.payloads or ():
            payload.release()
        for action in self.after or ():
            action()
