"""The common procedures of NFSv3, answered natively (RFC 1813 sections 3.3.1, 3.3.4, 3.3.6, 3.3.7 and 3.3.21).

Owns :class:`Nfs3Direct`, which has those of names from :mod:`nfsd.v3.direct_names`; imports the file service's direct
operations, :mod:`rpcrdma.place` and :mod:`rpcrdma.rpc.direct`. Answers are octet for octet those of
:mod:`nfsd.v3.attributes` and :mod:`nfsd.v3.data`, which do whatever is declined here: all that fails, waits or is rare.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v3.direct_changes cimport Nfs3Changes
from nfsd.v3.fattr cimport store_fattr, store_wcc
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport Standing, no
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs3 cimport (
    ACCESS3_DELETE, ACCESS3_EXTEND, ACCESS3_MODIFY, FILE_SYNC,
    NFSPROC3_ACCESS, NFSPROC3_COMMIT, NFSPROC3_CREATE, NFSPROC3_GETATTR, NFSPROC3_LINK, NFSPROC3_LOOKUP,
    NFSPROC3_MKDIR, NFSPROC3_READ, NFSPROC3_REMOVE, NFSPROC3_RENAME, NFSPROC3_RMDIR, NFSPROC3_SETATTR,
    NFSPROC3_SYMLINK, NFSPROC3_WRITE, READ3resok_MAX, UNSTABLE, fattr3_SIZE, load_nfs_fh3, nfs_fh3_t,
    wcc_data_MAX,
)
from rpcrdma.declined cimport CHUNKS, RARE, RECALL, SIZE
from rpcrdma.octets cimport load32, load64, store32
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.v3.errors import DATA_EXCEPTIONS, status_of
from nfsd.v3.request import Limits

cdef enum:
    READ_HEAD = 4 + READ3resok_MAX
    MODIFYING = ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE


cdef inline uint8_t *store_verifier(uint8_t *at, bytes verifier):
    """A writeverf3."""
    cdef const uint8_t *octets = verifier
    memcpy(at, octets, 8)
    return at + 8


cdef uint32_t status_of_data(int error) except 0:
    """The nfsstat3 of an errno of READ, WRITE or COMMIT."""
    return <uint32_t>int(status_of(OSError(error, strerror(error)), DATA_EXCEPTIONS))


cdef class Nfs3Direct(Nfs3Changes):
    cdef size_t read_max
    cdef size_t write_max

    def __init__(self, service, limits=None):
        limits = limits or Limits()
        self.read_max = limits.read_max
        self.write_max = limits.write_max
        self.guarded = (1 << NFSPROC3_SETATTR) | (1 << NFSPROC3_WRITE)
        self.guarded |= (1 << NFSPROC3_CREATE) | (1 << NFSPROC3_MKDIR) | (1 << NFSPROC3_SYMLINK)
        self.guarded |= (1 << NFSPROC3_REMOVE) | (1 << NFSPROC3_RMDIR) | (1 << NFSPROC3_RENAME) | (1 << NFSPROC3_LINK)
        self.procedures = self.guarded | (1 << NFSPROC3_GETATTR) | (1 << NFSPROC3_LOOKUP) | (1 << NFSPROC3_ACCESS)
        self.procedures |= (1 << NFSPROC3_READ) | (1 << NFSPROC3_COMMIT)

    cdef int pause(self) except -1:
        return self.files.pause()

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        return self.files.why

    cdef int answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef nfs_fh3_t handle
        cdef const uint8_t *rest = load_nfs_fh3(arguments, arguments + size, &handle)
        cdef Node node
        cdef Standing standing
        self.files.why = RARE
        if rest == NULL or handle.data.length == 0:
            return False
        if place.bulk != NULL and (procedure != NFSPROC3_WRITE or place.bulk_at != arguments + size):
            return no(self.files, CHUNKS)
        if brought is not None:
            # Something may have been done already: nothing that has happened meanwhile makes it undone.
            node, standing = brought.kept
        else:
            node = self.files.find(handle.data.octets, handle.data.length)
            if node is None:
                return False
            standing = self.files.standing(caller, node)
            if standing is None:
                return False
        self.tally = standing.tally
        size -= rest - arguments
        arguments = rest
        if procedure == NFSPROC3_READ:
            return self.read(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_WRITE:
            return self.write(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_GETATTR:
            return self.getattr(node, size, place)
        if procedure == NFSPROC3_LOOKUP:
            return self.lookup(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_ACCESS:
            return self.access(standing, node, arguments, size, place)
        if procedure == NFSPROC3_SETATTR:
            return self.setattr(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_CREATE:
            return self.create(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_MKDIR:
            return self.mkdir(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_SYMLINK:
            return self.symlink(standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_REMOVE or procedure == NFSPROC3_RMDIR:
            return self.remove(procedure, standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_RENAME:
            return self.rename(caller, standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_LINK:
            return self.link(caller, standing, node, arguments, size, place, brought)
        if procedure == NFSPROC3_COMMIT:
            return self.commit(standing, node, size, place, brought)
        return False

    cdef bint getattr(self, Node node, size_t size, Place place) except -1:
        cdef statx_t status
        if size != 0 or place.end - place.at < 4 + fattr3_SIZE or not self.files.look(node, &status):
            return False
        place.at = store_fattr(store32(place.at, 0), &status, self.fsid(node))
        return True

    cdef bint access(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1:
        cdef statx_t status
        cdef int granted
        if size != 4 or place.end - place.at < 12 + fattr3_SIZE or not self.files.look(node, &status):
            return False
        granted = self.files.access(standing.credential, node)
        if granted < 0:
            return False
        if standing.read_only:
            granted &= ~MODIFYING
        place.at = store_fattr(store32(store32(place.at, 0), 1), &status, self.fsid(node))
        place.at = store32(place.at, granted & load32(arguments))
        return True

    cdef int read(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef statx_t after
        cdef OpenFile opened
        cdef Transfer transfer = brought
        cdef uint64_t offset
        cdef size_t count
        cdef uint8_t *head = place.at
        cdef ssize_t got
        cdef bint eof
        if size != 12:
            return DECLINED
        if place.end - place.at < READ_HEAD:
            return no(self.files, SIZE)
        offset = load64(arguments)
        count = min(<size_t>load32(arguments + 8), self.read_max)
        if count == 0 or offset > <uint64_t>0x7FFFFFFFFFFFFFFF - count:
            return DECLINED
        if node.inode.delegated == 2:
            return no(self.files, RECALL)
        place.at += READ_HEAD
        if transfer is None:
            opened = self.files.opened(node, standing.credential, 1)
            if opened is None:
                return DECLINED
            got = self.files.read(opened, False, offset, place, count, &after, &eof)
            if got < 0:
                transfer = self.files.to_read(node, opened, False, offset, place, count)
                return self.waits(transfer, None, node, standing)
            place.data_done(got)
        else:
            if transfer.data.error:
                place.at = head
                return self.failed_read(node, transfer.data.error, place)
            if not self.files.have_read(transfer, place, &eof):
                return DECLINED
            got, after = transfer.data.done, transfer.data.after
        head = store_fattr(store32(store32(head, 0), 1), &after, self.fsid(node))
        store32(store32(store32(head, <uint32_t>got), eof), <uint32_t>got)
        self.tally.read += got
        return ANSWERED

    cdef int write(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef statx_t before, after
        cdef OpenFile opened
        cdef Transfer transfer
        cdef uint64_t offset
        cdef uint32_t stable
        cdef size_t count
        cdef ssize_t done
        cdef int error
        cdef bytes verifier
        cdef const uint8_t *source = arguments + 20
        if size < 20 or place.end - place.at < 4 + wcc_data_MAX + 16 or standing.read_only or node.export.read_only:
            return DECLINED
        offset = load64(arguments)
        count = load32(arguments + 8)
        stable = load32(arguments + 12)
        if count != load32(arguments + 16) or count > self.write_max:
            return DECLINED
        if place.bulk != NULL:
            if size != 20 or place.bulk_size != count:
                return DECLINED
            source = place.bulk
        elif size != 20 + ((count + 3) & ~<size_t>3):
            return DECLINED
        if stable > FILE_SYNC:
            return DECLINED
        if brought is None:
            if node.inode.delegated:
                return no(self.files, RECALL)
            opened = self.files.opened(node, standing.credential, 2)
            if opened is None:
                return DECLINED
            verifier = self.files.service.write_verifier
            done = self.files.write(
                opened, False, offset, source, count, stable != UNSTABLE, &before, &after, place.bulk != NULL
            )
            if done < 0:
                transfer = self.files.to_write(node, opened, False, offset, source, count)
                return self.waits(transfer, None, node, standing)
        else:
            transfer = <Transfer?>(brought if brought.earlier is None else brought.earlier)
            if brought is transfer:
                error = self.files.have_written(transfer)
                if error == 0 and stable != UNSTABLE and not node.export.asynchronous:
                    return self.waits(self.files.to_sync_written(transfer), transfer, node, standing)
            else:
                error = errno_of(<Errand?>brought)
            if error:
                return self.failed_change(node, error, place)
            verifier, done = transfer.verifier, transfer.data.done
            before, after = transfer.data.before, transfer.data.after
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(node))
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        self.tally.written += done
        place.at = store_verifier(place.at, verifier)
        return ANSWERED

    cdef int commit(self, Standing standing, Node node, size_t size, Place place, Work brought) except -1:
        cdef statx_t before, after
        cdef int error
        if size != 12 or place.end - place.at < 4 + wcc_data_MAX + 8 or standing.read_only or node.export.read_only:
            return DECLINED
        if brought is not None:
            error = errno_of(<Errand?>brought)
            if error:
                return self.failed_change(node, error, place)
            before = (<Sync>brought).before
            if not self.files.look(node, &after):
                return DECLINED
        elif node.export.asynchronous:
            return DECLINED
        elif not self.files.commit(standing.credential, node, &before, &after):
            return self.waits(self.files.to_commit(standing.credential, node), None, node, standing)
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(node))
        # Read after the flush: if another caller's found data lost meanwhile, this client must hear of it too.
        place.at = store_verifier(place.at, self.files.service.write_verifier)
        return ANSWERED

    # -- failures ------------------------------------------------------------------------------------------------
    cdef int failed_read(self, Node node, int error, Place place) except -1:
        """READ3resfail of an errno."""
        place.at = self.store_after(store32(place.at, status_of_data(error)), node)
        return ANSWERED

    cdef int failed_change(self, Node node, int error, Place place) except -1:
        """WRITE3resfail or COMMIT3resfail of an errno: a wcc_data of which only the later part is known."""
        place.at = self.store_after(store32(store32(place.at, status_of_data(error)), 0), node)
        return ANSWERED
