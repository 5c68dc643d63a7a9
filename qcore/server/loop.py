"""The server: one thread, one selector, one broker.

A turn reads what is there, runs it, does what is due, starts a commit if somebody
waits for one, and writes every connection's replies in one call each. Nothing polls:
the select timeout is the broker's next due time. Commits run in the store's writer
thread; the loop never waits for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from qcore import __version__
from qcore.backup.places import try_out
from qcore.broker.access import SessionSettings, Tokens
from qcore.broker.opening import close_broker, flush, open_broker
from qcore.broker.session import Session
from qcore.broker.webhooks import HookSettings, LazyPoster
from qcore.engine.backoff import backoff_ms
from qcore.errors import ConfigError, StoreError, complain, described, one_line
from qcore.limits import DEFAULT_RETRY_MS, MAX_RETRY_MS
from qcore.server.backups import END_PATIENCE_S, Backups, Flushes
from qcore.server.connection import Connection
from qcore.server.listening import Listener, open_tcp, open_unix
from qcore.server.options import Options
from qcore.server.traffic import Traffic
from qcore.store.writer import Writer

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger("qcore.server")

#: After running out of file descriptors, new connections are tried again this much later.
ACCEPT_PAUSE_S = 0.1
#: After an unexpected fault in what was due, it is tried again this much later.
AGAIN_S = 1.0
#: At the end, peers that have not taken all that is ready for them get so long to do it.
FAREWELL_S = 1.0
#: Exit code of a server that stopped, but could not write what was in memory.
UNWRITTEN = 3


class UnwrittenError(StoreError):
    """The server has ended, but not all that was in memory is in the data file."""


def _pauses_s() -> Iterator[float]:
    """How long to wait before a commit that failed is tried again."""
    for attempt in itertools.count(1):
        yield backoff_ms(attempt, DEFAULT_RETRY_MS, cap_ms=MAX_RETRY_MS, jitter=0) / 1000


class Server:
    """A broker behind a TCP port, and a Unix socket if one is asked for.

    Create, :meth:`listen`, then :meth:`run` until :meth:`stop`. Everything but
    :meth:`stop` belongs to one thread.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        # Before anything is opened: a bad file stops the start, and nothing else has begun.
        self._tls: ssl.SSLContext | None = None
        self._load_tls()
        if options.backups is not None and options.backups.directory is not None:
            try_out(options.backups.directory)
        self.broker = open_broker(
            options.data,
            mode="server",
            adds=options.adds,
            changes=options.changes,
            max_completed=options.max_completed_jobs,
            completed_retention_ms=options.completed_retention_ms,
            max_waiting_deps=options.max_waiting_deps,
            max_events=options.max_queue_events,
            max_minutes=options.max_metric_minutes,
            keep_events=options.journal,
            hooks=HookSettings(
                allowed=options.webhook_allowed,
                tries=options.webhook_tries,
                pause_ms=options.webhook_pause_ms,
                max_hooks=options.max_webhooks,
                max_waiting=options.max_waiting_posts,
                max_waiting_bytes=options.max_waiting_post_bytes,
            ),
        )
        self._poster = LazyPoster(self.broker)
        self._traffic = Traffic(
            partial_frame_ms=options.partial_frame_ms, handshake_ms=options.tls_handshake_ms
        )
        self._selector = self._traffic.selector
        self._sessions = SessionSettings(
            tokens=Tokens(options.tokens), max_metric_queues=options.max_metric_queues
        )
        self._reload = False
        self._listeners: list[Listener] = []
        self._wake_r, self._wake_w = socket.socketpair()
        for end in (self._wake_r, self._wake_w):
            end.setblocking(False)
        self._selector.register(self._wake_r, EVENT_READ, self._drain_wakes)
        self._done: deque[StoreError | None] = deque()
        self._writer = Writer(self.broker.store, self._commit_done) if self.broker.store is not None else None
        self._commits = 0
        self._flushes = Flushes(self._wake)
        self._backups = (
            Backups(options.data, options.backups, self._flushes.ask)
            if options.data is not None and options.backups is not None
            else None
        )
        if self._backups is not None:
            self.broker.backups = self._backups.figures
        self._stopping = 0
        self._stop_at_ns = 0
        self._accept_at_ns = 0
        self.address: tuple[str, int] = ("", 0)

    # --- life -----------------------------------------------------------------------

    def listen(self) -> None:
        """Open the port, and the socket in the file system if there is to be one.

        :raises ConfigError: an address is busy or not usable
        """
        options = self.options
        listener = open_tcp(options.host, options.port)
        self._listeners.append(listener)
        self.address = listener.sock.getsockname()[:2]
        if options.socket is not None:
            self._listeners.append(open_unix(options.socket))
        self._watch_listeners()

    def _watch_listeners(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener.sock, EVENT_READ, partial(self._accept, listener))

    def run(self) -> None:
        """Serve until stopped; then drain, flush and close."""
        if self.options.watch_stdin:
            self._watch_stdin()
        if self._backups is not None:
            self._backups.start()
        try:
            while not (self._stopping and self._finished()):
                self._turn()
        finally:
            self._shut_down()

    def stop(self) -> None:
        """Stop gracefully; a second call stops at once. May be called from a signal handler or a thread."""
        self._stopping += 1
        if self._stopping > 1:
            self._poster.hurry()
        self._wake()

    def _finished(self) -> bool:
        if not self._stop_at_ns:
            logger.info("stopping: no new work is given out")
            self._stop_at_ns = time.monotonic_ns() + self.options.shutdown_timeout_ms * 1_000_000
            self.broker.stop_intake()
            self._stop_listening()
            if self._backups is not None:
                self._backups.stop()
        if self._stopping > 1 or time.monotonic_ns() >= self._stop_at_ns:
            return True
        return self.broker.n_active == 0 and not self.broker.committing

    def _ignore_listeners(self) -> None:
        for listener in self._listeners:
            if listener.sock in self._selector.get_map():
                self._selector.unregister(listener.sock)

    def _stop_listening(self) -> None:
        self._ignore_listeners()
        while self._listeners:
            self._listeners.pop().close()

    def _shut_down(self) -> None:
        self._stop_listening()
        try:
            if self._writer is not None:
                self._writer.close()
                self._release_commits()
                with contextlib.suppress(StoreError):
                    flush(self.broker)
            self.broker.part()
            self._send_the_rest()
            for connection in list(self._traffic.connections):
                # Deliveries that are still out stay with their holders, under their stored leases.
                connection.close(release=False)
            self._traffic.connections.clear()
        finally:
            try:
                self.abandon()
            except StoreError as error:
                raise UnwrittenError(self._lack(error)) from error

    def _lack(self, error: StoreError) -> str:
        """What the data file lacks after an end that could not write it."""
        if self.broker.degraded is None:
            return f"stopped; every change is written, but not that it is the end: {error}"
        why, _, since_ms = self.broker.degraded
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_ms // 1000))
        return (
            "stopped, but not everything in memory could be written: changed jobs that are lost: "
            f"{self.broker.unwritten_jobs:,}; the data file cannot be written since {since} UTC: {why}"
        )

    def _wait_to_try_again(self, pauses_s: Iterator[float]) -> bool:
        """After an end that could not be written: wait, unless it is time to give up."""
        self._drain_wakes()
        left = (self._stop_at_ns - time.monotonic_ns()) * 1e-9
        if self._stopping > 1 or left <= 0:
            return False
        pause = min(left, next(pauses_s))
        logger.error("the data file cannot be written; trying again in %.1f s, for %.1f s", pause, left)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_r, EVENT_READ)
            selector.select(pause)
        return True

    def _send_the_rest(self) -> None:
        """Write what is ready, with a moment for peers that are slow to take it."""
        until = time.monotonic() + FAREWELL_S
        with selectors.DefaultSelector() as selector:
            for connection in self._traffic.connections:
                if connection.send() and connection.unsent:
                    selector.register(connection.sock, EVENT_WRITE, connection)
            while selector.get_map() and (left := until - time.monotonic()) > 0 and self._stopping < 2:
                for key, _ in selector.select(left):
                    if not key.data.send() or not key.data.unsent:
                        selector.unregister(key.fileobj)

    def abandon(self) -> None:
        """Give up what was opened, without a farewell to anybody. For a start that failed."""
        self._stop_listening()
        self._poster.close()
        if self._backups is not None:
            self._flushes.nothing()
            self._backups.close(0.0 if self._stopping > 1 else END_PATIENCE_S)
        try:
            if self._writer is not None:
                self._writer.close()
            close_broker(self.broker, partial(self._wait_to_try_again, _pauses_s()))
        finally:
            self._selector.close()
            self._wake_r.close()
            self._wake_w.close()

    # --- one turn ----------------------------------------------------------------------

    def _turn(self) -> None:
        self._traffic.receive(self._begin_turn())
        if self._reload:
            self._reload_now()
        if self._done:
            self._release_commits()

    def _begin_turn(self) -> float | None:
        """What is due and what the last turn left to send; how long the selector may sleep."""
        # Commits start before replies go out: the disk works while the sockets do.
        seconds = self._pump()
        self._traffic.send()
        if self._traffic.unfinished:
            return 0.0
        seconds = self._traffic.expire(seconds)
        if self._stop_at_ns:
            left = max(0.0, (self._stop_at_ns - time.monotonic_ns()) * 1e-9)
            seconds = left if seconds is None else min(seconds, left)
        if self._accept_at_ns:
            seconds = self._resume_accept(seconds)
        return seconds

    def _pump(self) -> float | None:
        try:
            seconds, cut = self.broker.pump()
        except Exception as fault:
            # A fault of ours in what was due must not end the server for everybody.
            logger.error("what was due was not done: %s", described(fault))
            return AGAIN_S
        if cut is None and self._flushes.asked and not self.broker.committing:
            cut = self.broker.begin_commit()
            if cut is None:
                self._flushes.nothing()
        if cut is not None:
            assert self._writer is not None
            self._commits += 1
            self._flushes.begin()
            self._writer.submit(self._commits, cut, self.broker.sync)
        return seconds

    def _accept(self, listener: Listener) -> None:
        for _ in range(64):
            try:
                sock, _ = listener.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.error("cannot accept a connection: %s", error.strerror)
                    self._ignore_listeners()
                    self._accept_at_ns = time.monotonic_ns() + int(ACCEPT_PAUSE_S * 1e9)
                    return
                continue
            connection = self._connection(listener, sock)
            connection.session = Session(
                self.broker,
                partial(self._traffic.touch, connection),
                authenticated=not self._sessions.tokens,
                rate_max=self.options.rate_max,
                rate_window_ms=self.options.rate_window_ms,
                max_waits=self.options.max_waits,
                settings=self._sessions,
                in_order=True,
            )
            self._traffic.admit(connection)

    def _connection(self, listener: Listener, sock: socket.socket) -> Connection:
        """TLS is for the port: the socket in the file system leads nowhere else."""
        if self._tls is None or listener.path is not None:
            return Connection(
                sock, self._traffic.room, self.options.max_write_queue_bytes, self.options.keepalive_s
            )
        from qcore.server.tls import TlsConnection

        return TlsConnection(
            sock, self._traffic.room, self.options.max_write_queue_bytes, self.options.keepalive_s, self._tls
        )

    def _resume_accept(self, seconds: float | None) -> float | None:
        left = (self._accept_at_ns - time.monotonic_ns()) * 1e-9
        if left > 0:
            return left if seconds is None else min(seconds, left)
        self._accept_at_ns = 0
        self._watch_listeners()
        return seconds

    # --- files that are read again -----------------------------------------------------------

    def reload(self) -> None:
        """Read certificate, key and tokens again, soon. May be called from a signal handler or a thread."""
        self._reload = True
        self._wake()

    def _load_tls(self) -> bool:
        if self.options.tls is None:
            return False
        from qcore.server.tls import load  # servers without it need no ssl

        self._tls = load(self.options.tls)
        return True

    def _reload_now(self) -> None:
        self._reload = False
        options = self.options
        if options.tls is None and options.token_file is None:
            logger.info("there are no files to be read again")
        try:
            if self._load_tls():
                logger.info("new connections get the certificate as it is now")
        except ConfigError as error:
            logger.error("the certificate stays as it was: %s", error)
        try:
            if options.token_file is not None:
                self._sessions.tokens.replace(options.read_tokens_again())
                n = self._cut_off_revoked()
                logger.info("tokens were read again; connections with a token that is gone: %d, closed", n)
        except ConfigError as error:
            logger.error("the tokens stay as they were: %s", error)

    def _cut_off_revoked(self) -> int:
        tokens = self._sessions.tokens
        gone = [
            connection
            for connection in self._traffic.connections
            if "token" in connection.session.state and not tokens.has(connection.session.state["token"])
        ]
        for connection in gone:
            self._traffic.drop(connection)
        return len(gone)

    # --- commits and wake-ups -------------------------------------------------------------

    def _commit_done(self, epoch: int, error: StoreError | None) -> None:
        """Runs in the writer's thread."""
        self._done.append(error)
        self._wake()

    def _release_commits(self) -> None:
        while self._done:
            error = self._done.popleft()
            if error is not None:
                logger.error("the data file cannot be written: %s", error)
            self.broker.end_commit(error)
            self._flushes.end(error)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes as well
            self._wake_w.send(b"\0")

    def wake_by_signals(self) -> None:
        """Let signals end the wait for sockets. Main thread only.

        One that comes just before the wait, or in another thread, does not interrupt it.
        """
        signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._wake_r.recv(4096)

    def _watch_stdin(self) -> None:
        if sys.stdin is None:  # closed before the start
            self.stop()
            return
        try:
            self._selector.register(sys.stdin.fileno(), EVENT_READ, self._stdin_closed)
        except PermissionError:  # a file or /dev/null: nobody holds the other end
            self.stop()

    def _stdin_closed(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._selector.unregister(sys.stdin.fileno())
            self.stop()


def serve(options: Options, out: TextIO | None = None) -> int:
    """Run a server in this process until a signal stops it; its exit code.

    :raises ConfigError: the address is not usable
    :raises StoreError: the data file is not usable
    """
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    server = Server(options)
    try:
        server.listen()
    except BaseException:
        server.abandon()
        raise

    def on_signal(number: int, frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, frame: server.reload())
    server.wake_by_signals()
    out = sys.stdout if out is None else out
    out.write(banner(server))
    out.flush()
    try:
        server.run()
    except UnwrittenError as error:
        complain(f"qcore start: {one_line(error)}")
        return UNWRITTEN
    finally:
        signal.set_wakeup_fd(-1)
    return 0 if server._stopping < 2 else 1


def banner(server: Server) -> str:
    """What the server says when it is ready."""
    options = server.options
    recovery = server.broker.recovery
    host, port = server.address
    lines = [f"qcore {__version__} listening on {host}:{port}"]
    if options.tls is not None:
        asked = "" if options.tls.client_ca is None else ", clients need a certificate"
        lines.append(f"  tls         {options.tls.cert}{asked}")
    if options.socket is not None:
        lines.append(f"  socket      {options.socket}")
    if options.data is None:
        lines.append("  data        memory only (give --data FILE to keep jobs)")
    else:
        lines.append(
            f"  data        {options.data} ({recovery.jobs:,} jobs read in {recovery.seconds:.2f} s)"
        )
        lines.append(f"  durability  adds {options.adds}, everything else {options.changes}")
        if recovery.log_damage is not None:
            lines.append(f"  lost        {recovery.log_damage}")
        if recovery.unreadable:
            n = len(recovery.unreadable)
            lines.append(f"  unreadable  {n:,} rows, set aside as dead letters: see the log")
    lines.append(f"  clients     {'token required' if options.tokens else 'no token required'}")
    if options.backups is not None:
        place, minutes = options.backups.place, options.backups.interval_ms / 60_000
        lines.append(f"  backups     to {place}, every {minutes:g} minutes, {options.backups.keep} kept")
    if options.http_port is not None:
        lines.append("  http        not served: this version has no HTTP")
    return "\n".join(lines) + "\n"
