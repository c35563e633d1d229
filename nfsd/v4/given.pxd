"""C declarations of attributes that clients give files."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v4.fattr cimport WORDS
from nfsd.vfs.direct cimport changes_t

cdef struct settable_t:
    changes_t changes
    int64_t size                # -1: not given
    uint32_t umask              # to be taken from the mode
    bint umask_given
    uint32_t mask[WORDS]   # which attributes
    uint32_t failure            # NFS4_OK, or why they cannot be set
    bint rare                   # they are to be decoded by nfsd.v4.settable, from the fattr4's octets:
    const uint8_t *at
    const uint8_t *end


# The fattr4 at ``at``; behind it, or NULL: there is none (NFS4ERR_BADXDR).
cdef const uint8_t *load_given(
    const uint8_t *at, const uint8_t *end, uint32_t minor, object names, settable_t *given
) except? NULL
# Of a fattr4 that :func:`load_given` has found ``rare``, for nfsd.v4.settable.
cdef object declared_fattr(const settable_t *given)
