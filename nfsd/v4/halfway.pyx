"""COMPOUNDs that stand between two operations: they wait, or change hands (contract: ``halfway.pyi``).

Owns :class:`Halfway`, made by :mod:`nfsd.v4.native_compound`, and taken up there when what an operation waits for has come,
or by :mod:`nfsd.v4.compound` where an operation is not carried out natively. The slot that the COMPOUND holds goes along, and
is given back if nobody takes it.

``nfsd.v4.compound`` makes them as well, for the operations that it has carried out natively (:func:`stretch_of`).
"""

from nfsd.vfs.records cimport Node

from nfsd.state.types import INVALID


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


def stretch_of(compound, size_t offset, bint alone):
    cdef Halfway begun, halfway = Halfway.__new__(Halfway)
    call, sequence = compound.call, compound.sequence
    halfway.driven, halfway.alone = True, alone
    halfway.index = halfway.base = halfway.counted = compound.index
    halfway.offset, halfway.results = offset, b""
    halfway.elsewhere, halfway.room = call.results.size, compound.room
    halfway.current, halfway.pseudo = apart(compound.current)
    halfway.saved, halfway.saved_pseudo = apart(compound.saved)
    halfway.foreign, halfway.saved_foreign = compound.foreign, compound.saved_foreign
    halfway.stateid = None if compound.stateid is INVALID else compound.stateid
    halfway.saved_stateid = None if compound.saved_stateid is INVALID else compound.saved_stateid
    halfway.opened_by, halfway.changed = compound.opener, not call.forget
    halfway.used = not call.chunks
    halfway.session = compound.session
    if sequence is not None:
        halfway.sequenceid, halfway.slotid = sequence.sa_sequenceid, sequence.sa_slotid
        halfway.highest_slotid, halfway.cachethis = sequence.sa_highest_slotid, sequence.sa_cachethis
    halfway.shown, halfway.tally = max(call.shown, 0), call.tally
    begun, compound.begun = compound.begun, None
    if begun is not None:
        # The next operation has been begun: it goes on.
        halfway.errand, begun.errand = begun.errand, None
        halfway.turn, begun.turn = begun.turn, None
    return halfway


cdef tuple apart(node):
    """A file of a real file system, and a place in the pseudo file system; either is None."""
    return (node, None) if node is None or isinstance(node, Node) else (None, node)
