"""What a call of NFSv3 waits for before it is carried out: the file, the caller, a look, a descriptor.

Owns :class:`Need` and :class:`Progress`; imports the file service's records and :mod:`nfsd.v3.request`. None of this
changes anything, so a call may have many of these needs, one behind the other, before it does what it is for.
"""

from contextlib import ExitStack

from nfsd.vfs.attributes cimport status_in
from nfsd.vfs.native_files cimport Standing, standing_on
from nfsd.vfs.records cimport Node, OpenFile
from rpcrdma.rpc.tally cimport Tally
from rpcrdma.rpc.work cimport Errand

from nfsd.v3.request import Demands, arrive, open_undelegated, recall


cdef class Progress:
    def __cinit__(self):
        self.granted = -1

    def __del__(self):
        if self.opened is not None:
            self.opened.let_go()
        if self.hold is not None:
            self.hold.close()


cdef Progress progress_of(Node node, Standing standing):
    """Of a call of which so much is known."""
    cdef Progress progress = Progress.__new__(Progress)
    progress.node, progress.standing = node, standing
    if standing is not None:
        progress.tally = standing.tally
    return progress


cdef Standing standing_in(tuple arrived, Tally tally):
    """What :func:`nfsd.v3.request.arrive` has found out."""
    node, credential, access = arrived
    return standing_on(node.export, credential, access.read_only, tally)


cdef class Need(Errand):
    cdef int start(self) except -1:
        self.coroutine = self.begun()
        return Errand.start(self)

    def begun(self):
        """What brings it."""
        cdef Progress progress = self.progress
        cdef Node node = progress.node
        service = self.service
        if self.kind == ARRIVAL or self.kind == OTHER:
            caller = self.caller
            demands = Demands.BELOW_ROOT if self.looking else Demands.EVERYWHERE
            return arrive(service, service.exports, self.handle, caller.transport, caller.credential, self.arrived, demands)
        credential = progress.standing.credential if progress.standing is not None else None
        if self.kind == OPENING:
            progress.hold = ExitStack()
            return open_undelegated(
                service, self.delegations, credential, node, progress.hold, write=bool(self.write)
            )
        if self.kind == RECALLED:
            progress.hold = ExitStack()
            files = [file for file in self.files if file is not None]
            return recall(service, self.delegations, credential, files, progress.hold)
        if self.kind == PERMISSIONS:
            return service.access(credential, node)
        if self.kind == COMMITTING:
            return service.may_commit(credential, node)
        if self.kind == TEXT:
            return service.readlink(credential, node)
        if self.kind == ROOM:
            return service.unstable.make_room(node.inode)
        return service.look(node)

    def arrived(self, node):
        """The caller may use the export; what it is there is still to be found out."""
        if self.kind == OTHER:
            self.progress.other = node
            return
        self.progress.node = node
        self.progress.tally = self.service.exports.tally(node.export, self.caller.peer_address)

    def ended(self, result, error):
        """Take what has been brought at once: it must be given back, whatever becomes of the call."""
        if error is None:
            self.settle(result)
        Errand.ended(self, None, error)

    cdef int settle(self, result) except -1:
        cdef Progress progress = self.progress
        if self.kind == ARRIVAL:
            progress.node = result[0]
            progress.standing = standing_in(result, progress.tally)
        elif self.kind == OTHER:
            progress.other = result[0]
            progress.other_standing = standing_in(result, progress.tally)
        elif self.kind == OPENING:
            progress.opened = <OpenFile?>result
        elif self.kind == PERMISSIONS:
            progress.granted = result
        elif self.kind == TEXT:
            progress.text = result
        elif self.kind == COMMITTING:
            progress.asked, progress.may_commit = True, result
        elif self.kind == LOOK:
            progress.status = status_in(result)[0]
            progress.looked = True
        return 0
