# distutils: extra_compile_args = -O2
"""A 64-bit digest of octets, to tell apart within this process what should not be compared in full.

Owns the process's secret; imports nothing. It is fast (about as fast as octets can be read) and is not cryptographic:
whoever does not know the secret, which never leaves the process, cannot choose octets of the same digest. A digest says
nothing outside of the process that made it.

Six lanes take 16 octets of each block, by a 64 x 64 multiplication whose halves are folded together. How the octets
were cut into pieces makes no difference.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    static inline uint64_t digest_fold(uint64_t one, uint64_t other)
    {
        unsigned __int128 product = (unsigned __int128)one * other;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }

    static inline uint64_t digest_word(const uint8_t *at)
    {
        uint64_t word;
        memcpy(&word, at, sizeof(word));
        return word;
    }

    /* Blocks of 96 octets; the lanes in registers. */
    static void digest_blocks(uint64_t *lanes, const uint64_t *secret, const uint8_t *at, size_t blocks)
    {
        uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3], e = lanes[4], f = lanes[5];
        for (; blocks; blocks--, at += 96) {
            a = digest_fold(digest_word(at) ^ secret[0], digest_word(at + 8) ^ a);
            b = digest_fold(digest_word(at + 16) ^ secret[1], digest_word(at + 24) ^ b);
            c = digest_fold(digest_word(at + 32) ^ secret[2], digest_word(at + 40) ^ c);
            d = digest_fold(digest_word(at + 48) ^ secret[3], digest_word(at + 56) ^ d);
            e = digest_fold(digest_word(at + 64) ^ secret[4], digest_word(at + 72) ^ e);
            f = digest_fold(digest_word(at + 80) ^ secret[5], digest_word(at + 88) ^ f);
        }
        lanes[0] = a; lanes[1] = b; lanes[2] = c; lanes[3] = d; lanes[4] = e; lanes[5] = f;
    }
    """
    uint64_t digest_fold(uint64_t one, uint64_t other) noexcept nogil
    void digest_blocks(uint64_t *lanes, const uint64_t *secret, const uint8_t *at, size_t blocks) noexcept nogil


cdef uint64_t secret[3 * DIGEST_LANES]
cdef bytes drawn = os.urandom(sizeof(secret))
memcpy(secret, <const char *>drawn, sizeof(secret))


cdef void digest_begin(Digest *digest) noexcept nogil:
    """Begin a digest."""
    memcpy(digest.lanes, secret + DIGEST_LANES, sizeof(digest.lanes))
    digest.total = digest.held = 0


cdef void digest_add(Digest *digest, const void *octets, size_t size) noexcept nogil:
    """Add the next octets."""
    cdef const uint8_t *at = <const uint8_t *>octets
    cdef size_t part
    digest.total += size
    if digest.held:
        part = min(size, <size_t>DIGEST_BLOCK - digest.held)
        memcpy(digest.block + digest.held, at, part)
        digest.held += part
        at += part
        size -= part
        if digest.held < DIGEST_BLOCK:
            return
        digest_blocks(digest.lanes, secret, digest.block, 1)
        digest.held = 0
    part = size // DIGEST_BLOCK
    digest_blocks(digest.lanes, secret, at, part)
    digest.held = size - part * DIGEST_BLOCK
    memcpy(digest.block, at + part * DIGEST_BLOCK, digest.held)


cdef uint64_t digest_end(Digest *digest) noexcept nogil:
    """The digest of all that was added."""
    cdef uint64_t mixed = digest.total
    cdef int lane
    if digest.held:
        memset(digest.block + digest.held, 0, DIGEST_BLOCK - digest.held)
        digest_blocks(digest.lanes, secret, digest.block, 1)
    for lane in range(DIGEST_LANES):
        mixed = digest_fold(mixed ^ secret[2 * DIGEST_LANES + lane], digest.lanes[lane] ^ secret[lane])
    return mixed


def digest_of(*pieces):
    cdef Digest digest
    cdef Py_buffer octets
    digest_begin(&digest)
    for piece in pieces:
        PyObject_GetBuffer(piece, &octets, PyBUF_SIMPLE)
        if octets.len:
            digest_add(&digest, octets.buf, octets.len)
        PyBuffer_Release(&octets)
    return digest_end(&digest)
