"""Posting and polling for one device, from the event loop's thread or from one of its own.

Owns :class:`Pump`; imports the libraries.

A turn
    The commands (chains to post) are carried out; the completion queues that have or may have something are polled; one
    that is empty is armed and polled once more, since a completion that came in between raises no event.

Whose turn
    Hardware is posted to and polled through mapped memory, at once, by the loop's thread. The kernel's software devices
    are posted to by a system call that does the sending, too, and that the kernel refuses to a thread whose credentials
    changed (:mod:`rpcrdma.verbs.device.control`): for them a thread of our own takes the turns, beside the loop. It
    sleeps in poll(2) on the completion channel and on ``wake_fd``, and tells the loop by ``event_fd``. It must be
    started by a thread with the right credentials.

Locks
    ``queue_lock`` for what is handed over; ``work_lock`` for a turn, so that a queue pair is never destroyed while it
    is posted to. One who takes both takes ``work_lock`` first.
"""

import os

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from rpcrdma.threads cimport (
    SIG_SETMASK,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    pthread_sigmask,
    sigfillset,
    sigset_t,
)
from rpcrdma.verbs.device.verbs_api cimport (
    ibv_ack_cq_events,
    ibv_comp_channel,
    ibv_cq,
    ibv_get_cq_event,
    ibv_poll_cq,
    ibv_post_send,
    ibv_qp,
    ibv_req_notify_cq,
    ibv_send_wr,
    ibv_wc,
)


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *descriptors, unsigned long count, int timeout)
    int POLLIN


cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *buffer, size_t length)
    ssize_t write(int fd, const void *buffer, size_t length)


cdef enum:
    BATCH = 64
    # Milliseconds. siw's kernel part writes a completion and then looks whether an event is wanted, without a barrier
    # in between: now and then one comes without its event.
    LOOK_AGAIN = 500


cdef int reserve(void **items, size_t *capacity, size_t count, size_t size) noexcept nogil:
    """Make room for ``count`` items. Returns 0, or -1 without memory."""
    cdef size_t wanted = capacity[0]
    cdef void *grown
    if count <= wanted:
        return 0
    while wanted < count:
        wanted = wanted * 2 if wanted else 256
    grown = realloc(items[0], wanted * size)
    if grown == NULL:
        return -1
    items[0] = grown
    capacity[0] = wanted
    return 0


cdef int poll_one(pump_t *pump, watched_t *watched, ibv_wc *completions) noexcept nogil:
    """Poll a queue until it is empty. Returns how many came; an error is left in ``pump.error``."""
    cdef int got, i
    cdef int total = 0
    while True:
        got = ibv_poll_cq(watched.cq, BATCH, completions)
        if got < 0:
            pump.error = errno if errno else EINTR
            return total
        if got:
            pthread_mutex_lock(&pump.queue_lock)
            if reserve(<void **>&pump.notices.items, &pump.notices.capacity, pump.notices.count + got, sizeof(notice_t)):
                pump.error = 12
            else:
                for i in range(got):
                    pump.notices.items[pump.notices.count].completion = completions[i]
                    pump.notices.items[pump.notices.count].refused = 0
                    pump.notices.count += 1
            pthread_mutex_unlock(&pump.queue_lock)
        total += got
        if got < BATCH or total >= 16 * BATCH or pump.error:
            return total


cdef int carry_out(pump_t *pump, command_t *command) noexcept nogil:
    """Post a chain. Returns 1 when a notice says that it was refused."""
    cdef ibv_send_wr *bad = NULL
    cdef notice_t *notice
    cdef int error
    command.watched.hot = 1
    if command.broken[0]:
        return 0
    error = ibv_post_send(command.pair, command.first, &bad)
    if error == 0:
        return 0
    command.broken[0] = 1
    pthread_mutex_lock(&pump.queue_lock)
    if reserve(<void **>&pump.notices.items, &pump.notices.capacity, pump.notices.count + 1, sizeof(notice_t)):
        pump.error = 12
    else:
        notice = pump.notices.items + pump.notices.count
        pump.notices.count += 1
        memset(notice, 0, sizeof(notice_t))
        notice.completion.qp_num = command.number
        notice.completion.wr_id = command.first.wr_id if bad == NULL else bad.wr_id
        notice.refused = error if error > 0 else -error
    pthread_mutex_unlock(&pump.queue_lock)
    return 1


cdef int take_events(pump_t *pump) noexcept nogil:
    """Note which queues raised an event."""
    cdef ibv_cq *cq = NULL
    cdef void *context = NULL
    cdef size_t i
    while ibv_get_cq_event(pump.channel, &cq, &context) == 0:
        ibv_ack_cq_events(cq, 1)
        for i in range(pump.watched_count):
            if pump.watched[i].cq == cq:
                pump.watched[i].armed = 0
                pump.watched[i].hot = 1
                break
    return 0


cdef int turn(pump_t *pump, commands_t *commands) noexcept nogil:
    """Carry out ``commands``, poll what is hot, arm what is empty. Returns whether there may be more at once."""
    cdef ibv_wc completions[BATCH]
    cdef watched_t *watched
    cdef size_t i
    cdef int more = 0
    cdef int error
    for i in range(commands.count):
        if commands.items[i].pair != NULL:
            carry_out(pump, commands.items + i)
    commands.count = 0
    for i in range(pump.watched_count):
        watched = pump.watched[i]
        if not watched.hot:
            continue
        if poll_one(pump, watched, completions):
            more = 1
        elif watched.armed:
            watched.hot = 0
        else:
            error = ibv_req_notify_cq(watched.cq, 0)
            if error:
                pump.error = error if error > 0 else -error
                watched.hot = 0
            else:
                watched.armed = 1
                more = 1
    return more


cdef int tell(pump_t *pump) noexcept nogil:
    """Tell the loop that there are notices, once."""
    cdef uint64_t one = 1
    cdef int needed
    pthread_mutex_lock(&pump.queue_lock)
    needed = (pump.notices.count or pump.error) and not pump.told
    if needed:
        pump.told = 1
    pthread_mutex_unlock(&pump.queue_lock)
    if needed:
        write(pump.event_fd, &one, sizeof(one))
    return 0


cdef void *run(void *argument) noexcept nogil:
    """The thread."""
    cdef pump_t *pump = <pump_t *>argument
    cdef commands_t commands
    cdef commands_t swapped
    cdef pollfd descriptors[2]
    cdef uint64_t count
    cdef size_t i
    cdef int more, stopping
    memset(&commands, 0, sizeof(commands))
    descriptors[0].fd = pump.channel.fd
    descriptors[1].fd = pump.wake_fd
    descriptors[0].events = descriptors[1].events = POLLIN
    while True:
        pthread_mutex_lock(&pump.work_lock)
        pthread_mutex_lock(&pump.queue_lock)
        # Taken with the work lock held, so that what destroys a queue pair sees all of its commands.
        swapped = pump.commands
        pump.commands = commands
        commands = swapped
        stopping = pump.stopping
        pthread_mutex_unlock(&pump.queue_lock)
        more = turn(pump, &commands)
        pthread_mutex_unlock(&pump.work_lock)
        tell(pump)
        if stopping:
            free(commands.items)
            return NULL
        if pump.error:
            more = 0
        if not more:
            pthread_mutex_lock(&pump.queue_lock)
            more = pump.commands.count or pump.stopping
            pump.sleeping = not more
            pthread_mutex_unlock(&pump.queue_lock)
        if not more:
            if poll(descriptors, 2, LOOK_AGAIN) == 0:
                descriptors[0].revents = descriptors[1].revents = 0
                pthread_mutex_lock(&pump.work_lock)
                for i in range(pump.watched_count):
                    pump.watched[i].hot = 1
                pthread_mutex_unlock(&pump.work_lock)
            pthread_mutex_lock(&pump.queue_lock)
            pump.sleeping = 0
            pthread_mutex_unlock(&pump.queue_lock)
            if descriptors[1].revents:
                read(pump.wake_fd, &count, sizeof(count))
        elif poll(descriptors, 1, 0) <= 0:
            continue
        if descriptors[0].revents:
            pthread_mutex_lock(&pump.work_lock)
            take_events(pump)
            pthread_mutex_unlock(&pump.work_lock)


cdef class Pump:
    """Posting and polling for one device."""

    def __cinit__(self):
        self.pump.event_fd = self.pump.wake_fd = -1
        pthread_mutex_init(&self.pump.queue_lock, NULL)
        pthread_mutex_init(&self.pump.work_lock, NULL)

    def __dealloc__(self):
        cdef size_t i
        # A program that ends with its devices in use: the thread must not outlive what it works on.
        self.stop()
        pthread_mutex_destroy(&self.pump.queue_lock)
        pthread_mutex_destroy(&self.pump.work_lock)
        for i in range(self.pump.watched_count):
            free(self.pump.watched[i])
        free(self.pump.watched)
        free(self.pump.commands.items)
        free(self.pump.notices.items)
        free(self.taken.items)
        free(self.fresh.items)

    @property
    def event_fd(self):
        """Readable when there are notices of the thread's."""
        return self.pump.event_fd

    cdef int start(self, ibv_comp_channel *channel, bint threaded) except -1:
        """Begin; with ``threaded``, on a thread with the credentials of this one. Raises OSError."""
        cdef sigset_t everything
        cdef sigset_t before
        cdef int error
        self.pump.channel = channel
        if not threaded:
            return 0
        self.pump.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.pump.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Signals belong to the interpreter's thread.
        sigfillset(&everything)
        pthread_sigmask(SIG_SETMASK, &everything, &before)
        error = pthread_create(&self.thread, NULL, run, &self.pump)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error:
            raise OSError(error, "cannot start a thread: " + os.strerror(error))
        self.threaded = True
        return 0

    cdef int stop(self) except -1:
        """End the thread. Idempotent."""
        cdef uint64_t one = 1
        if self.threaded:
            self.threaded = False
            with nogil:
                pthread_mutex_lock(&self.pump.queue_lock)
                self.pump.stopping = 1
                pthread_mutex_unlock(&self.pump.queue_lock)
                write(self.pump.wake_fd, &one, sizeof(one))
                pthread_join(self.thread, NULL)
        for fd in (self.pump.event_fd, self.pump.wake_fd):
            if fd >= 0:
                os.close(fd)
        self.pump.event_fd = self.pump.wake_fd = -1
        return 0

    cdef watched_t *watch(self, ibv_cq *cq) except NULL:
        """Poll a completion queue from now on."""
        cdef watched_t *watched = <watched_t *>malloc(sizeof(watched_t))
        cdef pump_t *pump = &self.pump
        cdef int failed
        if watched == NULL:
            raise MemoryError
        watched.cq = cq
        watched.armed = 0
        watched.hot = 1  # it is armed in the first turn
        with nogil:
            pthread_mutex_lock(&pump.work_lock)
            failed = reserve(
                <void **>&pump.watched, &pump.watched_capacity, pump.watched_count + 1, sizeof(watched_t *)
            )
            if not failed:
                pump.watched[pump.watched_count] = watched
                pump.watched_count += 1
            pthread_mutex_unlock(&pump.work_lock)
        if failed:
            free(watched)
            raise MemoryError
        return watched

    cdef int unwatch(self, watched_t *watched) except -1:
        """Poll a completion queue no more. No queue pair uses it."""
        cdef pump_t *pump = &self.pump
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&pump.work_lock)
            for i in range(pump.watched_count):
                if pump.watched[i] == watched:
                    pump.watched_count -= 1
                    pump.watched[i] = pump.watched[pump.watched_count]
                    break
            pthread_mutex_unlock(&pump.work_lock)
        free(watched)
        return 0

    cdef int post(self, command_t *command) except -1:
        """Have a chain posted: now, or by the thread once it is kicked."""
        cdef pump_t *pump = &self.pump
        cdef int failed = 0
        if not self.threaded:
            with nogil:
                carry_out(pump, command)
            return 0
        with nogil:
            pthread_mutex_lock(&pump.queue_lock)
            if reserve(
                <void **>&pump.commands.items, &pump.commands.capacity, pump.commands.count + 1, sizeof(command_t)
            ):
                failed = 1
            else:
                pump.commands.items[pump.commands.count] = command[0]
                pump.commands.count += 1
            pthread_mutex_unlock(&pump.queue_lock)
        if failed:
            raise MemoryError
        return 0

    cdef int kick(self) except -1:
        """Wake the thread if it sleeps."""
        cdef pump_t *pump = &self.pump
        cdef uint64_t one = 1
        cdef int asleep
        if self.threaded:
            with nogil:
                pthread_mutex_lock(&pump.queue_lock)
                asleep = pump.sleeping
                pump.sleeping = 0
                pthread_mutex_unlock(&pump.queue_lock)
                if asleep:
                    write(pump.wake_fd, &one, sizeof(one))
        return 0

    cdef int work(self) except -1:
        """Without a thread: take a turn. Returns whether there may be more at once."""
        cdef int more
        with nogil:
            take_events(&self.pump)
            more = turn(&self.pump, &self.taken)
        return more

    cdef int clear(self) except -1:
        """Take back what woke the loop."""
        cdef uint64_t count
        read(self.pump.event_fd, &count, sizeof(count))
        return 0

    cdef notices_t *collect(self) except NULL:
        """Take the notices there are. They are the caller's until it calls again."""
        cdef pump_t *pump = &self.pump
        cdef notices_t swapped
        self.fresh.count = 0
        with nogil:
            pthread_mutex_lock(&pump.queue_lock)
            swapped = pump.notices
            pump.notices = self.fresh
            self.fresh = swapped
            pump.told = 0
            pthread_mutex_unlock(&pump.queue_lock)
        return &self.fresh

    cdef int forget(self, ibv_qp *pair) except -1:
        """Forget what was to be posted on ``pair``, which is about to be destroyed. Nothing is being posted on return."""
        cdef pump_t *pump = &self.pump
        cdef size_t i
        with nogil:
            pthread_mutex_lock(&pump.work_lock)
            pthread_mutex_lock(&pump.queue_lock)
            for i in range(pump.commands.count):
                if pump.commands.items[i].pair == pair:
                    pump.commands.items[i].pair = NULL
            pthread_mutex_unlock(&pump.queue_lock)
            pthread_mutex_unlock(&pump.work_lock)
        return 0

    cdef int drain(self, watched_t *watched) except -1:
        """A queue pair is gone: take what it left in its completion queue."""
        cdef pump_t *pump = &self.pump
        cdef ibv_wc completions[BATCH]
        with nogil:
            pthread_mutex_lock(&pump.work_lock)
            while poll_one(pump, watched, completions) and not pump.error:
                pass
            watched.hot = 1
            pthread_mutex_unlock(&pump.work_lock)
        return 0
