"""Posting and polling for one device, from the event loop's thread or from one of its own."""

from libc.stdint cimport uint32_t, uint64_t

from rpcrdma.threads cimport pthread_mutex_t, pthread_t
from rpcrdma.verbs.device.verbs_api cimport ibv_comp_channel, ibv_cq, ibv_qp, ibv_send_wr, ibv_wc


cdef struct watched_t:
    ibv_cq *cq
    int armed
    int hot


cdef struct command_t:
    ibv_qp *pair
    uint32_t number
    watched_t *watched
    ibv_send_wr *first
    int *broken


cdef struct notice_t:
    ibv_wc completion
    int refused                 # an errno: this is no completion, but a post that was refused from wr_id on


cdef struct notices_t:
    notice_t *items
    size_t count
    size_t capacity


cdef struct commands_t:
    command_t *items
    size_t count
    size_t capacity


cdef struct pump_t:
    pthread_mutex_t queue_lock  # commands, notices, flags; held briefly
    pthread_mutex_t work_lock   # held while posting and polling; what destroys takes it too
    commands_t commands
    notices_t notices
    watched_t **watched
    size_t watched_count
    size_t watched_capacity
    ibv_comp_channel *channel
    int event_fd                # tells the loop of notices
    int wake_fd                 # tells the thread of commands
    int told
    int sleeping
    int stopping
    int error                   # polling or arming failed: the device is broken


cdef class Pump:
    cdef pump_t pump
    cdef pthread_t thread
    cdef readonly bint threaded
    cdef commands_t taken
    cdef notices_t fresh

    cdef int start(self, ibv_comp_channel *channel, bint threaded) except -1
    cdef watched_t *watch(self, ibv_cq *cq) except NULL
    cdef int unwatch(self, watched_t *watched) except -1
    cdef int post(self, command_t *command) except -1
    cdef int kick(self) except -1
    cdef int work(self) except -1
    cdef int clear(self) except -1
    cdef notices_t *collect(self) except NULL
    cdef int forget(self, ibv_qp *pair) except -1
    cdef int drain(self, watched_t *watched) except -1
    cdef int stop(self) except -1
