"""Objects of a pool, by Ceph's own library (contract: ``client.pyi``).

Owns the connection to the cluster. Every method waits for the cluster, so none is for the event loop's thread; the
interpreter is free meanwhile.
"""

import errno
import os
from typing import NamedTuple

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t
from posix.time cimport timeval

from nfsd.stable.rados.api cimport *

cdef enum:
    ATTRIBUTE = 4096
    LOCKERS = 8192
    AT_A_TIME = 512                 # pairs that are asked for; a cluster hands out 1024 at most


class Locker(NamedTuple):
    client: bytes
    cookie: bytes
    address: bytes


cdef int check(int64_t result) except -1:
    """Raise OSError for what the library has returned, if that is an error."""
    if result < 0:
        raise OSError(<int>-result, os.strerror(<int>-result))
    return 0


cdef class Strings:
    """Strings as C has them, which live as long as the list that they are made of."""
    cdef list kept
    cdef const char **octets
    cdef size_t *lengths
    cdef size_t count

    def __cinit__(self, list kept):
        cdef size_t index
        self.kept, self.count = kept, len(kept)
        self.octets = <const char **>PyMem_Malloc(max(1, self.count) * sizeof(char *))
        self.lengths = <size_t *>PyMem_Malloc(max(1, self.count) * sizeof(size_t))
        if self.octets == NULL or self.lengths == NULL:
            raise MemoryError
        for index in range(self.count):
            one = <bytes?>kept[index]
            self.octets[index], self.lengths[index] = <char *>one, len(one)

    def __dealloc__(self):
        PyMem_Free(self.octets)
        PyMem_Free(self.lengths)


cdef class Cluster:
    """See the module."""
    cdef rados_t cluster
    cdef rados_ioctx_t pool

    def __init__(self, bytes name not None):
        check(rados_create(&self.cluster, name))

    def __dealloc__(self):
        self.end()

    # -- connecting ----------------------------------------------------------------------------------------------
    def read_configuration(self, bytes path not None):
        check(rados_conf_read_file(self.cluster, path))

    def configure(self, bytes option not None, bytes value not None):
        check(rados_conf_set(self.cluster, option, value))

    def connect(self):
        cdef int result
        with nogil:
            result = rados_connect(self.cluster)
        check(result)

    def open(self, bytes pool not None, bytes namespace not None):
        cdef const char *name = pool
        cdef int result
        with nogil:
            result = rados_ioctx_create(self.cluster, name, &self.pool)
        check(result)
        rados_ioctx_set_namespace(self.pool, namespace)

    def end(self):
        cdef rados_t cluster = self.cluster
        cdef rados_ioctx_t pool = self.pool
        self.cluster = self.pool = NULL
        if cluster == NULL:
            return
        with nogil:
            if pool != NULL:
                rados_ioctx_destroy(pool)
            rados_shutdown(cluster)

    cdef int usable(self) except -1:
        if self.pool == NULL:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return 0

    # -- objects -------------------------------------------------------------------------------------------------
    def attribute(self, bytes name not None, bytes key not None):
        cdef char value[ATTRIBUTE]
        cdef const char *c_name = name
        cdef const char *c_key = key
        cdef int result
        self.usable()
        with nogil:
            result = rados_getxattr(self.pool, c_name, c_key, value, ATTRIBUTE)
        if result in (-errno.ENODATA, -errno.ENOENT):
            return b""
        check(result)
        return value[:result]

    def pairs(self, bytes name not None):
        found = {}
        last, more = b"", True
        while more:
            last, more = self.further_pairs(name, last, found)
        return found

    cdef tuple further_pairs(self, bytes name, bytes after, dict found):
        """Put the next pairs into ``found``; the last key, and whether there are more."""
        cdef const char *c_name = name
        cdef const char *c_after = after
        cdef rados_read_op_t operation
        cdef rados_omap_iter_t iterator = NULL
        cdef unsigned char more = 0
        cdef int result, of_step = 0
        cdef char *key
        cdef char *value
        cdef size_t key_length, length
        self.usable()
        operation = rados_create_read_op()
        try:
            rados_read_op_omap_get_vals2(operation, c_after, b"", AT_A_TIME, &iterator, &more, &of_step)
            with nogil:
                result = rados_read_op_operate(operation, self.pool, c_name, 0)
            check(result)
            check(of_step)
            while True:
                check(rados_omap_get_next2(iterator, &key, &value, &key_length, &length))
                if key == NULL:
                    return after, more != 0
                after = key[:key_length]
                found[after] = value[:length]
        finally:
            if iterator != NULL:
                rados_omap_get_end(iterator)
            rados_release_read_op(operation)

    def change(self, bytes name not None, tuple guard, dict attributes not None, dict pairs not None, list gone not None):
        cdef const char *c_name = name
        cdef rados_write_op_t operation
        cdef int result
        cdef Strings keys = Strings(list(pairs)), values = Strings(list(pairs.values())), former = Strings(gone)
        self.usable()
        operation = rados_create_write_op()
        try:
            if guard is not None:
                attribute, value = guard
                rados_write_op_cmpxattr(operation, attribute, LIBRADOS_CMPXATTR_OP_EQ, value, len(value))
            for attribute, value in attributes.items():
                rados_write_op_setxattr(operation, attribute, value, len(value))
            if former.count:
                rados_write_op_omap_rm_keys2(operation, former.octets, former.lengths, former.count)
            if keys.count:
                rados_write_op_omap_set2(operation, keys.octets, values.octets, keys.lengths, values.lengths, keys.count)
            with nogil:
                result = rados_write_op_operate(operation, self.pool, c_name, NULL, 0)
        finally:
            rados_release_write_op(operation)
        check(result)

    # -- locks ---------------------------------------------------------------------------------------------------
    def lock(self, bytes name not None, bytes lock not None, bytes cookie not None, bytes who not None, int seconds):
        cdef const char *c_name = name
        cdef const char *c_lock = lock
        cdef const char *c_cookie = cookie
        cdef const char *c_who = who
        cdef timeval duration
        cdef int result
        duration.tv_sec, duration.tv_usec = seconds, 0
        self.usable()
        with nogil:
            result = rados_lock_exclusive(
                self.pool, c_name, c_lock, c_cookie, c_who, &duration, LIBRADOS_LOCK_FLAG_MAY_RENEW
            )
        check(result)

    def unlock(self, bytes name not None, bytes lock not None, bytes cookie not None):
        cdef const char *c_name = name
        cdef const char *c_lock = lock
        cdef const char *c_cookie = cookie
        cdef int result
        self.usable()
        with nogil:
            result = rados_unlock(self.pool, c_name, c_lock, c_cookie)
        check(result)

    def break_lock(self, bytes name not None, bytes lock not None, holder not None):
        client, cookie, _ = holder
        cdef const char *c_name = name
        cdef const char *c_lock = lock
        cdef const char *c_client = client
        cdef const char *c_cookie = cookie
        cdef int result
        self.usable()
        with nogil:
            result = rados_break_lock(self.pool, c_name, c_lock, c_client, c_cookie)
        check(result)

    def lockers(self, bytes name not None, bytes lock not None):
        cdef const char *c_name = name
        cdef const char *c_lock = lock
        cdef char tag[ATTRIBUTE]
        cdef char clients[LOCKERS]
        cdef char cookies[LOCKERS]
        cdef char addresses[LOCKERS]
        cdef size_t of_tag = ATTRIBUTE, of_clients = LOCKERS, of_cookies = LOCKERS, of_addresses = LOCKERS
        cdef int exclusive
        cdef ssize_t count
        self.usable()
        with nogil:
            count = rados_list_lockers(
                self.pool, c_name, c_lock, &exclusive, tag, &of_tag, clients, &of_clients, cookies, &of_cookies,
                addresses, &of_addresses
            )
        if count == -errno.ENOENT:
            return []
        check(count)
        columns = clients[:of_clients], cookies[:of_cookies], addresses[:of_addresses]
        return [Locker(*row) for row in zip(*(column.split(b"\0")[:count] for column in columns), strict=True)]
