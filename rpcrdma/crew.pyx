"""Threads that do what is long, without the interpreter's lock (contract: ``crew.pyi``).

Owns the threads and the order of their tasks, which is that of their posting; imports nothing of the project. Whoever posts
a task keeps what it works on where it is, until it is told that the task is done, or has withdrawn it.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint64_t
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

import os

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void *at, size_t length)


cdef class Finished:
    cdef int task_done(self) except -1:
        return 0


cdef void *work(void *argument) noexcept nogil:
    cdef pool_t *pool = <pool_t *>argument
    cdef task_t *task
    cdef uint64_t one = 1
    cdef bint tell
    pthread_mutex_lock(&pool.lock)
    while True:
        task = pool.first
        if task == NULL:
            if pool.stopping:
                break
            pool.idle += 1
            pthread_mutex_unlock(&pool.lock)
            sem_wait(&pool.calls)  # woken by anything else, it looks once more, and is called once too often later
            pthread_mutex_lock(&pool.lock)
            continue
        pool.first = task.next
        task.state = RUNNING
        pthread_mutex_unlock(&pool.lock)
        task.run(task)
        pthread_mutex_lock(&pool.lock)
        task.state = AT_REST
        if task.cancelled:
            pthread_cond_broadcast(&pool.rest)  # who waits for it takes it
            continue
        tell = pool.finished == NULL
        task.next, pool.finished = pool.finished, task
        if tell:
            # Not with the lock: the loop wakes at once and wants it.
            pthread_mutex_unlock(&pool.lock)
            c_write(pool.event_fd, &one, 8)
            pthread_mutex_lock(&pool.lock)
    pthread_mutex_unlock(&pool.lock)
    return NULL


cdef class Crew:
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

    cpdef attach(self, loop):
        if self.loop is None:
            self.loop = loop
            loop.add_reader(self.pool.event_fd, self.take)

    def close(self):
        loop, self.loop = self.loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.pool.event_fd)
        self.stop()
        self.take()

    cdef int stop(self) except -1:
        """Have every task done that was posted, and the threads end."""
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

    cdef bint post(self, task_t *task, Finished owner) except -1:
        """Have a thread do a task; ``owner`` is told when it is done. False: there is none."""
        cdef bint call, more
        if self.count == 0 and self.most:
            self.start_thread()
        if self.count == 0:
            return False
        Py_INCREF(owner)
        task.owner, task.next, task.cancelled, task.state = <PyObject *>owner, NULL, False, QUEUED
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            if self.pool.first == NULL:
                self.pool.first = task
            else:
                self.pool.last.next = task
            self.pool.last = task
            call = self.pool.idle > 0
            if call:
                self.pool.idle -= 1
            pthread_mutex_unlock(&self.pool.lock)
            if call:
                sem_post(&self.pool.calls)
        if not call and self.count < self.most:
            self.start_thread()
        return True

    cdef int withdraw(self, task_t *task) except -1:
        """Have a task ended as soon as it can be. Its owner is told no more."""
        cdef task_t **at
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            task.cancelled = True
            while task.state == RUNNING:
                pthread_cond_wait(&self.pool.rest, &self.pool.lock)
            at = &self.pool.first if task.state == QUEUED else &self.pool.finished
            while at[0] != NULL and at[0] != task:
                at = &at[0].next
            if at[0] == task:
                at[0] = task.next
            # The last one's place is where the next is put.
            self.pool.last = self.pool.first
            while self.pool.last != NULL and self.pool.last.next != NULL:
                self.pool.last = self.pool.last.next
            pthread_mutex_unlock(&self.pool.lock)
        task.state = AT_REST
        if task.owner != NULL:
            owner, task.owner = <object>task.owner, NULL
            Py_DECREF(owner)
        return 0

    def take(self):
        cdef task_t *task
        cdef task_t *next_task
        cdef list owners = []
        try:
            os.eventfd_read(self.pool.event_fd)
        except BlockingIOError:
            pass
        with nogil:
            pthread_mutex_lock(&self.pool.lock)
            task, self.pool.finished = self.pool.finished, NULL
            pthread_mutex_unlock(&self.pool.lock)
        while task != NULL:
            next_task = task.next
            owner, task.owner = <object>task.owner, NULL
            owners.append(owner)
            Py_DECREF(owner)
            task = next_task
        for owner in reversed(owners):
            (<Finished>owner).task_done()
