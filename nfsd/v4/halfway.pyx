"""COMPOUNDs that stand between two operations: they wait, or change hands (contract: ``halfway.pyi``).

Owns :class:`Halfway`, made by :mod:`nfsd.v4.direct_compound`, and taken up there when what an operation waits for has come,
or by :mod:`nfsd.v4.compound` where an operation is not carried out natively. The slot that the COMPOUND holds goes along, and
is given back if nobody takes it.
"""


cdef class Halfway:
    @property
    def sequence(self):
        return self.session.sessionid, self.sequenceid, self.slotid, self.highest_slotid, self.cachethis

    def take_slot(self):
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
