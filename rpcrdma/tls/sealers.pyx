"""Enciphering and sending, without the interpreter's lock: at once, or by threads (contract: ``sealers.pyi``).

Owns :class:`Sealers` and the jobs' doing; imports the records. A job has octets of a connection, where they are, and
room for records. It enciphers as much as fits, sends that, and goes on until all has left or the socket takes no more.
What is short is done on the loop. What is long is a thread's, so that several connections use several processors. A
thread never waits for a peer. Each connection has one job at a time, and they come in the order of their posting.

While a job is a thread's, the octets, the room and the keys are that thread's, too.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from rpcrdma.threads cimport (
    SIG_SETMASK,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_wait,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    pthread_sigmask,
    sem_destroy,
    sem_init,
    sem_post,
    sem_wait,
    sigfillset,
    sigset_t,
)
from rpcrdma.tls.library cimport crypto
from rpcrdma.tls.records cimport DATA, HEADER, MOST, TRAILER, add_to_record, begin_record, end_record

import os

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void *at, size_t length, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void *at, size_t length)
    ssize_t c_write "write"(int fd, const void *at, size_t length)

cdef enum:
    LEAST = 4096            # octets of room for which a record is begun, if it is not the last


# -- what a job is --------------------------------------------------------------------------------------------------
cdef void run(job_t *job) noexcept nogil:
    """Encipher and send, until all has left, or the socket takes no more, or it cannot be done."""
    cdef ssize_t sent
    job.blocked = False
    while not job.cancelled:
        while job.start < job.end:
            sent = c_send(job.fd, job.room + job.start, job.end - job.start, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                job.start += sent
            elif errno == EAGAIN:
                job.blocked = True
                return
            elif errno != EINTR:
                job.error = errno
                return
        job.start = job.end = 0
        if job.left == 0:
            return
        if not fill(job):
            crypto.clear_error()
            job.error = EIO
            return


cdef bint fill(job_t *job) noexcept nogil:
    """Make as many records as there is room for."""
    cdef size_t room, length
    while job.left:
        room = job.capacity - job.end
        if room < min(job.left, <size_t>LEAST) + HEADER + TRAILER:
            break
        length = min(job.left, <size_t>MOST, room - HEADER - TRAILER)
        if not make_record(job, job.room + job.end, length):
            return False
        job.end += HEADER + length + TRAILER
        job.left -= length
        job.enciphered += length
    return job.end > 0


cdef bint make_record(job_t *job, uint8_t *at, size_t length) noexcept nogil:
    """One record of what comes next."""
    cdef source_t *source
    cdef size_t part
    if not begin_record(job.keys, at, length):
        return False
    at += HEADER
    while length:
        source = &job.sources[job.index]
        part = min(length, source.length - job.offset)
        if source.pipe >= 0:
            # Copied before: a file's pages may change while they are being enciphered.
            if not read_all(source.pipe, at, part) or not add_to_record(job.keys, at, at, part):
                return False
        elif not add_to_record(job.keys, at, source.base + job.offset, part):
            return False
        at += part
        length -= part
        job.offset += part
        if job.offset == source.length:
            job.index, job.offset = job.index + 1, 0
    return end_record(job.keys, at, DATA)


cdef bint read_all(int pipe, uint8_t *at, size_t length) noexcept nogil:
    """Read what is known to be there."""
    cdef ssize_t got
    while length:
        got = c_read(pipe, at, length)
        if got <= 0:
            if got < 0 and errno == EINTR:
                continue
            return False
        at += got
        length -= got
    return True


# -- threads --------------------------------------------------------------------------------------------------------
cdef class Finished:
    cdef int job_done(self) except -1:
        return 0


cdef void *work(void *argument) noexcept nogil:
    cdef pool_t *pool = <pool_t *>argument
    cdef job_t *job
    cdef uint64_t one = 1
    cdef bint tell
    pthread_mutex_lock(&pool.lock)
    while True:
        job = pool.first
        if job == NULL:
            if pool.stopping:
                break
            pool.idle += 1
            pthread_mutex_unlock(&pool.lock)
            sem_wait(&pool.calls)  # woken by anything else, it looks once more, and is called once too often later
            pthread_mutex_lock(&pool.lock)
            continue
        pool.first = job.next
        job.state = RUNNING
        pthread_mutex_unlock(&pool.lock)
        run(job)
        pthread_mutex_lock(&pool.lock)
        job.state = AT_REST
        if job.cancelled:
            pthread_cond_broadcast(&pool.rest)  # who waits for it takes it
            continue
        tell = pool.finished == NULL
        job.next, pool.finished = pool.finished, job
        if tell:
            # Not with the lock: the loop wakes at once and wants it.
            pthread_mutex_unlock(&pool.lock)
            c_write(pool.event_fd, &one, 8)
            pthread_mutex_lock(&pool.lock)
    pthread_mutex_unlock(&pool.lock)
    return NULL


cdef class Sealers:
    def __cinit__(self, int most):
        memset(&self.pool, 0, sizeof(self.pool))
        self.pool.event_fd = -1
        pthread_mutex_init(&self.pool.lock, NULL)
        pthread_cond_init(&self.pool.rest, NULL)
        sem_init(&self.pool.calls, 0, 0)
        self.most = min(most, <int>MOST_THREADS)
        self.pool.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __dealloc__(self):
        self.stop()
        pthread_mutex_destroy(&self.pool.lock)
        pthread_cond_destroy(&self.pool.rest)
        sem_destroy(&self.pool.calls)
        if self.pool.event_fd >= 0:
            os.close(self.pool.event_fd)

    def fileno(self):
        return self.pool.event_fd

    def close(self):
        self.stop()
        self.take()

    cdef int stop(self) except -1:
        """Have every job done that was posted, and the threads end."""
        cdef int index
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            self.pool.stopping = True
            pthread_mutex_unlock(&self.pool.lock)
            for index in range(self.count):
                sem_post(&self.pool.calls)
            for index in range(self.count):
                pthread_join(self.threads[index], NULL)
        self.count = self.most = 0
        return 0

    cdef int start_thread(self) except -1:
        cdef sigset_t everything
        cdef sigset_t before
        # Signals belong to the interpreter's thread.
        sigfillset(&everything)
        pthread_sigmask(SIG_SETMASK, &everything, &before)
        if pthread_create(&self.threads[self.count], NULL, work, &self.pool) == 0:
            self.count += 1
        else:
            self.most = self.count  # it would be the same with the next
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        return 0

    cdef bint post(self, job_t *job, Finished owner) except -1:
        """Have a thread do a job; ``owner`` is told when it is done. False: there is none."""
        cdef bint call, more
        if self.count == 0 and self.most:
            self.start_thread()
        if self.count == 0:
            return False
        Py_INCREF(owner)
        job.owner, job.next, job.cancelled, job.state = <PyObject *>owner, NULL, False, QUEUED
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            if self.pool.first == NULL:
                self.pool.first = job
            else:
                self.pool.last.next = job
            self.pool.last = job
            call = self.pool.idle > 0
            if call:
                self.pool.idle -= 1
            pthread_mutex_unlock(&self.pool.lock)
            if call:
                sem_post(&self.pool.calls)
        if not call and self.count < self.most:
            self.start_thread()
        return True

    cdef int withdraw(self, job_t *job) except -1:
        """Have a job ended as soon as it can be. Its owner is told no more."""
        cdef job_t **at
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            job.cancelled = True
            while job.state == RUNNING:
                pthread_cond_wait(&self.pool.rest, &self.pool.lock)
            at = &self.pool.first if job.state == QUEUED else &self.pool.finished
            while at[0] != NULL and at[0] != job:
                at = &at[0].next
            if at[0] == job:
                at[0] = job.next
            # The last one's place is where the next is put.
            self.pool.last = self.pool.first
            while self.pool.last != NULL and self.pool.last.next != NULL:
                self.pool.last = self.pool.last.next
            pthread_mutex_unlock(&self.pool.lock)
        job.state = AT_REST
        if job.owner != NULL:
            owner, job.owner = <object>job.owner, NULL
            Py_DECREF(owner)
        return 0

    def take(self):
        cdef job_t *job
        cdef job_t *next_job
        cdef list owners = []
        try:
            os.eventfd_read(self.pool.event_fd)
        except BlockingIOError:
            pass
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            job, self.pool.finished = self.pool.finished, NULL
            pthread_mutex_unlock(&self.pool.lock)
        while job != NULL:
            next_job = job.next
            owner, job.owner = <object>job.owner, NULL
            owners.append(owner)
            Py_DECREF(owner)
            job = next_job
        for owner in reversed(owners):
            (<Finished>owner).job_done()
