"""How often each operation of NFSv4 was carried out, and which one a COMPOUND is about (contract: ``counts.pyi``)."""

from libc.string cimport memset

from nfsd.protocol import nfs4 as p

# Operations that lead to others, or tell about what these did; LOOKUP and the like are what a COMPOUND is about if
# nothing more is done in it.
_LEADING = (
    p.OP_SEQUENCE, p.OP_PUTFH, p.OP_PUTROOTFH, p.OP_PUTPUBFH, p.OP_SAVEFH, p.OP_RESTOREFH, p.OP_GETFH, p.OP_LOOKUPP,
)
_WEIGHTS = {**dict.fromkeys(_LEADING, 1), p.OP_GETATTR: 2, p.OP_ACCESS: 3, p.OP_LOOKUP: 3}


cdef class OperationCounts:
    def __cinit__(self):
        cdef int number
        memset(self.calls, 0, sizeof(self.calls))
        for number in range(128):
            self.weights[number] = _WEIGHTS.get(number, 4)
        self.weights[0] = 0

    def note(self, unsigned int number):
        self.calls[number if number < 128 else 0] += 1

    def weight(self, unsigned int number):
        return self.weights[number if number < 128 else 0]

    def all(self):
        return {number: self.calls[number] for number in range(128) if self.calls[number]}
