"""NFS file handles: making them, and believing them only when they are ours (contract: ``handles.pyi``).

Owns the key. Imports nothing but the vocabulary. A handle is at most 64 octets (NFS3_FHSIZE, RFC 1813 section 2.4):

    version 1 | kernel handle type 1 | export id 4 | file system 6 | kernel handle 0..40 | MAC 12

The kernel's handle (name_to_handle_at) names the inode and its generation, so it survives renames and restarts, and is
stale once the inode is gone. The file system's octets come from what identifies it on the disk (see ``mounts``), not
from device numbers. The MAC is keyed with 32 octets that never leave the state directory: a client cannot make up the
handle of a file it was never given, which is why the server need not check on each use that a file still lies below
the export (``no_subtree_check`` of exports(5)): every handle was given out for a file reached by names inside it.

The MAC is keyed BLAKE2s (RFC 7693) of 12 octets. A listing makes thousands of handles on threads without the
interpreter's lock, where hashlib cannot be used; the test compares the two. The key is the first block, whose outcome
is computed once; what is signed fits in the second.
"""

import errno
import os

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from rpcrdma.octets cimport load32, store32

from nfsd.vfs.types import BadHandle

VERSION = HANDLE_VERSION
MAC_SIZE = MAC
KEY_SIZE = 32
MAX_KERNEL_HANDLE = KERNEL

cdef extern from *:
    """
    static const uint32_t blake2s_iv[8] = {
        0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
    /* RFC 7693 section 2.7 */
    static const uint8_t blake2s_sigma[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

    static inline uint32_t blake2s_turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

    static inline void blake2s_mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y)
    {
        v[a] += v[b] + x; v[d] = blake2s_turned(v[d] ^ v[a], 16);
        v[c] += v[d];     v[b] = blake2s_turned(v[b] ^ v[c], 12);
        v[a] += v[b] + y; v[d] = blake2s_turned(v[d] ^ v[a], 8);
        v[c] += v[d];     v[b] = blake2s_turned(v[b] ^ v[c], 7);
    }

    /* F of section 3.2: one block of 64 octets, up to and with which there have been "octets". */
    static void blake2s_block(uint32_t *h, const uint8_t *block, uint32_t octets, int last)
    {
        static const uint8_t lanes[8][4] = {
            {0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15},
            {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}};
        uint32_t m[16], v[16];
        for (int i = 0; i < 16; i++)
            m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16
                | (uint32_t)block[4 * i + 3] << 24;
        for (int i = 0; i < 8; i++) {
            v[i] = h[i];
            v[i + 8] = blake2s_iv[i];
        }
        v[12] ^= octets;
        if (last)
            v[14] = ~v[14];
        for (int round = 0; round < 10; round++)
            for (int lane = 0; lane < 8; lane++)
                blake2s_mix(v, lanes[lane][0], lanes[lane][1], lanes[lane][2], lanes[lane][3],
                            m[blake2s_sigma[round][2 * lane]], m[blake2s_sigma[round][2 * lane + 1]]);
        for (int i = 0; i < 8; i++)
            h[i] ^= v[i] ^ v[i + 8];
    }
    """
    const uint32_t *blake2s_iv
    void blake2s_block(uint32_t *h, const uint8_t *block, uint32_t octets, int last) nogil


cdef void mac_of(const mac_key_t *key, const uint8_t *body, size_t size, uint8_t *mac) noexcept nogil:
    """The MAC of 1 to 64 octets."""
    cdef uint32_t h[8]
    cdef uint8_t block[64]
    cdef int position
    memcpy(h, key.h, sizeof(h))
    memset(block, 0, sizeof(block))
    memcpy(block, body, size)
    blake2s_block(h, block, <uint32_t>(64 + size), 1)
    for position in range(MAC):
        mac[position] = <uint8_t>(h[position >> 2] >> (8 * (position & 3)))


cdef uint32_t sign_handle(
    const mac_key_t *key, uint32_t export_id, const uint8_t *fs_id, int kind, const uint8_t *octets, uint32_t size,
    uint8_t *sink
) noexcept nogil:
    if size > KERNEL or kind < 0 or kind > 255:
        return 0
    sink[0] = HANDLE_VERSION
    sink[1] = <uint8_t>kind
    store32(sink + 2, export_id)
    memcpy(sink + 6, fs_id, FS_ID)
    memcpy(sink + HEAD, octets, size)
    mac_of(key, sink, HEAD + size, sink + HEAD + size)
    return HEAD + size + MAC


cdef bytes signed(
    const mac_key_t *key, uint32_t export_id, const uint8_t *fs_id, int kind, const uint8_t *octets, uint32_t size
):
    cdef uint8_t handle[HANDLE]
    size = sign_handle(key, export_id, fs_id, kind, octets, size, handle)
    if size == 0:
        raise OSError(errno.EOVERFLOW, "the file system's handles do not fit in an NFS handle")
    return (<char *>handle)[:size]


cdef class HandleCodec:
    def __init__(self, bytes key not None):
        cdef uint8_t block[64]
        cdef int position
        cdef uint32_t size = <uint32_t>len(key)
        if not 1 <= size <= 32:
            raise ValueError("BLAKE2s takes keys of 1 to 32 octets")
        for position in range(8):
            self.key.h[position] = blake2s_iv[position]
        self.key.h[0] ^= 0x01010000 ^ (size << 8) ^ MAC  # section 2.8: the parameter block
        memset(block, 0, sizeof(block))
        memcpy(block, <const uint8_t *>key, size)
        blake2s_block(self.key.h, block, 64, 0)

    def encode(self, uint32_t export_id, bytes fs_id not None, int kind, bytes kernel not None):
        if len(fs_id) != FS_ID:
            raise ValueError("the file system has 6 octets")
        return signed(&self.key, export_id, fs_id, kind, kernel, <uint32_t>len(kernel))

    cdef bytes beside(self, bytes directory, int kind, const uint8_t *octets, uint32_t size):
        """The handle of a kernel handle on the file system of a directory, which has a handle itself, in the same export."""
        cdef const uint8_t *own = directory
        return signed(&self.key, load32(own + 2), own + 6, kind, octets, size)

    @staticmethod
    def claimed(handle):
        cdef bytes whole = bytes(handle)
        cdef const uint8_t *octets = whole
        if len(whole) < HEAD + MAC:
            return None
        return load32(octets + 2), whole[6:HEAD]

    def decode(self, handle):
        cdef bytes whole = bytes(handle)
        cdef const uint8_t *octets = whole
        cdef Py_ssize_t size = len(whole)
        cdef uint8_t mac[MAC]
        cdef uint8_t difference = 0
        cdef int position
        if not HEAD + MAC <= size <= HANDLE or octets[0] != HANDLE_VERSION:
            raise BadHandle
        mac_of(&self.key, octets, size - MAC, mac)
        for position in range(MAC):  # all of it in any case: how long it takes tells nothing
            difference |= mac[position] ^ octets[size - MAC + position]
        if difference:
            raise BadHandle
        return load32(octets + 2), whole[6:HEAD], octets[1], whole[HEAD : size - MAC]


def load_key(state_dir):
    """The server's key, made durably on the first start. Raises OSError naming the path."""
    path = os.path.join(state_dir, "handle.key")
    try:
        with open(path, "rb") as file:
            key = file.read(KEY_SIZE + 1)
    except FileNotFoundError:
        key = os.urandom(KEY_SIZE)
        _write_key(state_dir, path, key)
    if len(key) != KEY_SIZE:
        # A fresh key would silently make every client's handles bad: leave the decision to the administrator.
        raise OSError(errno.EINVAL, f"the handle key is {len(key)} octets instead of {KEY_SIZE}", path)
    return key


def _write_key(state_dir, path, key):
    """Under its name only once complete and on the disk: a crash leaves no half key."""
    draft = f"{path}.new"
    if os.path.lexists(draft):
        os.unlink(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
