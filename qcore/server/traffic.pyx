"""All connections of a server and the selector: who has something for us, and to whom something is owed.

A turn of the loop waits and reads (:meth:`Traffic.receive`), and writes what has come
of it (:meth:`Traffic.send`). Compiled, because every request passes here.
"""

cimport cython
from cpython.long cimport PyLong_AsLongLong
from libc.stdint cimport int64_t

from qcore.broker.session cimport Session
from qcore.server.connection cimport Connection

import select
import selectors
from time import monotonic_ns

#: The longest sleep: epoll takes no timeout beyond 24 days, and jobs may be due in 100 years.
LONGEST_SLEEP_S = 3600.0
#: select(2) takes numbers of descriptors below this.
SELECT_MOST = 1024

cdef enum:
    RECEIVE_BYTES = 262_144
    READ = 1                    # selectors.EVENT_READ
    WRITE = 2                   # selectors.EVENT_WRITE
    HANDSHAKES_NS = 2_000_000   # for TLS handshakes in one turn; the other ones wait for the next


cdef object _epoll(selector):
    """The number under which select can wait for everything that epoll waits for, if this is epoll."""
    if not hasattr(selectors, "EpollSelector") or not isinstance(selector, selectors.EpollSelector):
        return None
    number = selector.fileno()
    return number if number < SELECT_MOST else None


@cython.final
cdef class Traffic:
    """The connections of one server. Belongs to the thread of its loop.

    Others may wait in the same selector, with a callable as their data. Peers that owe us
    the rest of a frame, or of a TLS handshake, are dropped after so many milliseconds; 0 = never.
    """

    cdef readonly object selector
    cdef readonly bytearray room        # for what is read next; fresh memory costs page faults
    cdef readonly set connections
    cdef object epoll                   # descriptor, None: not epoll
    cdef object wait                    # selector.select
    cdef set touched                    # have output, or had something to read
    cdef set more                       # had their share of this turn
    # Who owes us something, since when; the oldest first.
    cdef dict partial
    cdef dict greeting
    cdef int64_t partial_frame_ms, handshake_ms
    cdef int64_t handshakes_ns          # spent in this turn

    def __cinit__(self, *, int64_t partial_frame_ms, int64_t handshake_ms):
        self.selector = selectors.DefaultSelector()
        self.epoll = _epoll(self.selector)
        self.wait = self.selector.select
        self.room = bytearray(RECEIVE_BYTES)
        self.connections = set()
        self.touched = set()
        self.more = set()
        self.partial = {}
        self.greeting = {}
        self.partial_frame_ms = partial_frame_ms
        self.handshake_ms = handshake_ms

    @property
    def unfinished(self):
        """Whether somebody had their share of this turn and goes on in the next."""
        return len(self.more) > 0

    def admit(self, Connection connection not None):
        """Listen to a new one."""
        self.connections.add(connection)
        if not connection.ready:
            self.greeting[connection] = monotonic_ns()
        connection.events = READ
        self.selector.register(connection.sock, READ, connection)

    def touch(self, Connection connection not None):
        """It has output."""
        self.touched.add(connection)

    def drop(self, Connection connection not None):
        """End it: its deliveries go back."""
        self.selector.unregister(connection.sock)
        self.connections.discard(connection)
        self.more.discard(connection)
        self.partial.pop(connection, None)
        self.greeting.pop(connection, None)
        connection.close()

    # --- in ----------------------------------------------------------------------------

    def receive(self, seconds):
        """Wait, at most so long (None: until something comes), and run what is there."""
        cdef Connection connection
        cdef int64_t events
        self.handshakes_ns = 0
        for key, got in self.c_wait(seconds):
            data = key[3]
            if isinstance(data, Connection):
                connection = data
                events = PyLong_AsLongLong(got)
                if events & READ and not self.c_read(connection):
                    self.drop(connection)
                else:
                    self.touched.add(connection)
            else:
                data()

    cdef list c_wait(self, seconds):
        """Wait for sockets, and at most so long, to the microsecond: jobs are due at their times."""
        cdef list found
        if seconds is None or seconds > LONGEST_SLEEP_S:
            seconds = LONGEST_SLEEP_S
        if seconds > 0:
            if self.epoll is None:
                found = self.wait(seconds)
            else:
                # Its own timeouts are whole milliseconds, rounded up. Those go by in it, the rest in a
                # call that takes microseconds, in a turn of its own.
                whole_s = int(seconds * 1000) * 0.001
                if whole_s:
                    found = self.wait(whole_s)
                else:
                    select.select((self.epoll,), (), (), seconds)
                    found = []
            if found:
                return found
        # A process that was stopped meanwhile comes back with nothing: renewals that are here go first.
        return self.wait(0)

    cdef bint c_read(self, Connection connection) except -1:
        if not (connection.receive() if connection.ready else self.c_greet(connection)):
            return False
        if connection.partial:
            # The deadline of a frame runs from its first byte: dripping does not extend it, and
            # a busy stream, whose reads rarely end between two frames, is at another one each time.
            if not connection.partial_since_ns or connection.partial_frame != connection.session.n_frames:
                connection.partial_since_ns = monotonic_ns()
                connection.partial_frame = connection.session.n_frames
                self.partial.pop(connection, None)
                self.partial[connection] = connection.partial_since_ns
        elif connection.partial_since_ns:
            connection.partial_since_ns = 0
            del self.partial[connection]
        return True

    cdef bint c_greet(self, Connection connection) except -1:
        """Go on with a handshake, which costs about 1 ms: many at once are spread over turns."""
        cdef int64_t started
        cdef bint alive
        if self.handshakes_ns > HANDSHAKES_NS:
            return True  # its bytes stay where they are, and wake the next turn
        started = monotonic_ns()
        alive = connection.receive()
        self.handshakes_ns += monotonic_ns() - started
        if connection.ready:
            del self.greeting[connection]
        return alive

    # --- out ---------------------------------------------------------------------------

    def send(self):
        """Write what there is, also what is said while that is written."""
        cdef set touched
        cdef Connection connection
        cdef Session session
        if self.more:
            self.touched |= self.more  # these had their share of the last turn
            self.more.clear()
        while self.touched:
            touched = self.touched
            self.touched = set()
            for connection in touched:
                if connection.closed:
                    continue
                if not connection.send():
                    self.drop(connection)
                    continue
                session = connection.session
                if connection.events != READ or connection.unsent or session.backlogged:
                    self.c_watch(connection)
                if connection.resumed or (session.c_has_output() and not connection.unsent):
                    # What it ran just now may be due, or wait for a commit: that is the next turn's pump.
                    connection.resumed = False
                    self.more.add(connection)

    cdef int c_watch(self, Connection connection) except -1:
        """Wait for room while bytes are unsent; read on unless requests wait for room already."""
        cdef int events = 0 if connection.session.backlogged else READ
        if connection.unsent:
            events |= WRITE
        # Selectors know no empty set: what is backlogged with nothing unsent goes on in the next turn.
        if events and events != connection.events:
            connection.events = events
            self.selector.modify(connection.sock, events, connection)
        return 0

    # --- deadlines ---------------------------------------------------------------------

    def expire(self, seconds):
        """Drop who owes us a rest for too long; how long may be slept, at most ``seconds``. O(dropped)."""
        if self.partial and self.partial_frame_ms:
            seconds = self.c_expire(self.partial, self.partial_frame_ms, seconds)
        if self.greeting and self.handshake_ms:
            seconds = self.c_expire(self.greeting, self.handshake_ms, seconds)
        return seconds

    cdef object c_expire(self, dict owing, int64_t bound_ms, seconds):
        cdef int64_t now_ns = monotonic_ns(), left_ns
        while owing:
            connection = next(iter(owing))
            left_ns = owing[connection] + bound_ms * 1_000_000 - now_ns
            if left_ns > 0:
                return left_ns * 1e-9 if seconds is None else min(seconds, left_ns * 1e-9)
            self.drop(connection)
        return seconds
