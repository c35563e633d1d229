"""Ceph's library for objects: their key-value pairs, attributes and locks (rados/librados.h)."""

from libc.stdint cimport uint8_t, uint64_t
from posix.time cimport timeval
from posix.types cimport time_t

cdef extern from "rados/librados.h" nogil:
    ctypedef void *rados_t
    ctypedef void *rados_ioctx_t
    ctypedef void *rados_write_op_t
    ctypedef void *rados_read_op_t
    ctypedef void *rados_omap_iter_t
    int LIBRADOS_CMPXATTR_OP_EQ
    int LIBRADOS_LOCK_FLAG_MAY_RENEW

    int rados_create(rados_t *cluster, const char *id)
    int rados_conf_read_file(rados_t cluster, const char *path)
    int rados_conf_set(rados_t cluster, const char *option, const char *value)
    int rados_connect(rados_t cluster)
    void rados_shutdown(rados_t cluster)
    int rados_ioctx_create(rados_t cluster, const char *pool_name, rados_ioctx_t *ioctx)
    void rados_ioctx_destroy(rados_ioctx_t io)
    void rados_ioctx_set_namespace(rados_ioctx_t io, const char *nspace)

    int rados_getxattr(rados_ioctx_t io, const char *o, const char *name, char *buf, size_t len)

    rados_write_op_t rados_create_write_op()
    void rados_release_write_op(rados_write_op_t write_op)
    void rados_write_op_cmpxattr(
        rados_write_op_t write_op, const char *name, uint8_t comparison, const char *value, size_t length
    )
    void rados_write_op_setxattr(rados_write_op_t write_op, const char *name, const char *value, size_t length)
    void rados_write_op_omap_set2(
        rados_write_op_t write_op, const char **keys, const char **vals, const size_t *key_lens,
        const size_t *val_lens, size_t num
    )
    void rados_write_op_omap_rm_keys2(
        rados_write_op_t write_op, const char **keys, const size_t *key_lens, size_t keys_len
    )
    int rados_write_op_operate(rados_write_op_t write_op, rados_ioctx_t io, const char *oid, time_t *mtime, int flags)

    rados_read_op_t rados_create_read_op()
    void rados_release_read_op(rados_read_op_t read_op)
    void rados_read_op_omap_get_vals2(
        rados_read_op_t read_op, const char *start_after, const char *filter_prefix, uint64_t max_return,
        rados_omap_iter_t *iterator, unsigned char *pmore, int *prval
    )
    int rados_read_op_operate(rados_read_op_t read_op, rados_ioctx_t io, const char *oid, int flags)
    int rados_omap_get_next2(rados_omap_iter_t iterator, char **key, char **val, size_t *key_len, size_t *val_len)
    void rados_omap_get_end(rados_omap_iter_t iterator)

    int rados_lock_exclusive(
        rados_ioctx_t io, const char *oid, const char *name, const char *cookie, const char *desc,
        timeval *duration, uint8_t flags
    )
    int rados_unlock(rados_ioctx_t io, const char *o, const char *name, const char *cookie)
    ssize_t rados_list_lockers(
        rados_ioctx_t io, const char *o, const char *name, int *exclusive, char *tag, size_t *tag_len,
        char *clients, size_t *clients_len, char *cookies, size_t *cookies_len, char *addrs, size_t *addrs_len
    )
    int rados_break_lock(rados_ioctx_t io, const char *o, const char *name, const char *client, const char *cookie)
