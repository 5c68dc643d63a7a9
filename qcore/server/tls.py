"""TLS of the port: the certificate from its files, and connections that are encrypted.

A connection drives the TLS machine through two memory buffers and leaves its socket
as it is. So nothing ever waits for a peer: the loop reads what has come, gives it to
the machine, and sends what the machine has written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import stat
from typing import NoReturn

from qcore.errors import ConfigError
from qcore.server.connection import Connection
from qcore.server.options import TlsFiles

logger = logging.getLogger("qcore.server")

#: What a peer that speaks no TLS is told before the close: fatal alert, protocol version.
ALERT_NO_TLS = bytes.fromhex("15030100020246")
#: What goes through the memory buffers at once: they never shrink again.
SLICE_BYTES = 1 << 16
_HEAD_BYTES = 5


def load(files: TlsFiles) -> ssl.SSLContext:
    """The settings of new connections.

    :raises ConfigError: a file cannot be read or is not what it should be, or the key does
        not fit; never shows what is in a file
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_TICKET
    # Sessions are not resumed: connections live long, and nothing is kept of those that ended.
    context.num_tickets = 0
    cert, _ = _read(files.cert, files.cert_option)
    key, key_is_open = _read(files.key, files.key_option)
    for path, option, content, mark, what in (
        (files.cert, files.cert_option, cert, b"-----BEGIN CERTIFICATE-----", "certificate"),
        (files.key, files.key_option, key, b"PRIVATE KEY-----", "private key"),
    ):
        if mark not in content:
            raise ConfigError(f"{option}: {path} holds no {what} in PEM form")
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except _EncryptedError:
        raise ConfigError(
            f"{files.key_option}: {files.key} is encrypted, expected a key without a password"
        ) from None
    except (OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{files.key_option}: the key in {files.key} does not fit the certificate in {files.cert}"
            ) from None
        why = getattr(error, "reason", None) or "damaged PEM"
        raise ConfigError(
            f"{files.cert_option}, {files.key_option}: {files.cert} and {files.key} cannot be used: {why}"
        ) from None
    if files.client_ca is not None:
        _read(files.client_ca, files.client_ca_option)
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError):
            raise ConfigError(
                f"{files.client_ca_option}: {files.client_ca} holds no certificates in PEM form"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    if key_is_open:  # not said of what is refused: that is one line
        logger.warning(
            "%s: every user of this machine has access to %s; chmod 600 it", files.key_option, files.key
        )
    return context


class _EncryptedError(Exception):
    pass


def _refuse_password() -> NoReturn:
    # Without this OpenSSL asks on the terminal, and the server hangs there.
    raise _EncryptedError


def _read(path: str, option: str) -> tuple[bytes, bool]:
    """What is in a file, and whether every user has access to it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a usable path"
        raise ConfigError(f"{option}: cannot read {path}: {why}") from None
    is_open = os.name == "posix" and stat.S_ISREG(mode) and bool(mode & (stat.S_IROTH | stat.S_IWOTH))
    return content, is_open


class Records:
    """Where the records of a TLS stream end: the machine does not tell whether it holds a part of one."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def partial(self) -> bool:
        """Whether the stream so far ends within a record."""
        return bool(self._head) or self._left > 0

    def feed(self, data: bytes | memoryview) -> None:
        """Go on in the stream."""
        pos, n = 0, len(data)
        head, left = self._head, self._left
        while pos < n:
            if left:
                step = min(left, n - pos)
                left -= step
                pos += step
            elif not head and n - pos >= _HEAD_BYTES:
                left = (data[pos + 3] << 8) | data[pos + 4]
                pos += _HEAD_BYTES
            else:
                step = min(_HEAD_BYTES - len(head), n - pos)
                head += data[pos : pos + step]
                pos += step
                if len(head) == _HEAD_BYTES:
                    left = (head[3] << 8) | head[4]
                    head = b""
        self._head, self._left = head, left


class TlsConnection(Connection):
    """A connection whose bytes are encrypted. Its bounds count the encrypted ones."""

    __slots__ = ("_incoming", "_outgoing", "_records", "_tls")

    def __init__(
        self,
        sock: socket.socket,
        room: bytearray,
        max_unsent_bytes: int,
        keepalive_s: int,
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(sock, room, max_unsent_bytes, keepalive_s)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = Records()
        self.ready = False

    def _feed(self, data: bytes | bytearray, n: int) -> bool:
        view = memoryview(data)[:n]
        self._records.feed(view)
        plain: list[bytes] = []
        alive = True
        for at in range(0, n, SLICE_BYTES):
            self._incoming.write(view[at : at + SLICE_BYTES])
            if not self.ready:
                if not self._shake_hands():
                    return False
                if not self.ready:
                    continue
            try:
                while piece := self._tls.read(SLICE_BYTES):
                    plain.append(piece)
                alive = False  # the peer said goodbye
                break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                logger.debug("a TLS connection broke: %s", error.reason)
                self._farewell()
                return False
        if plain:
            whole = plain[0] if len(plain) == 1 else b"".join(plain)
            alive &= super()._feed(whole, len(whole))
        session = self.session
        self.partial = not session.backlogged and (session.partial > 0 or self._records.partial)
        return alive

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return True
        except ssl.SSLError as error:
            # Whoever scans the port must not fill the log.
            logger.debug("a TLS handshake failed: %s", error.reason)
            if not self._outgoing.pending and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
                self._send_now(ALERT_NO_TLS)
            self._farewell()
            return False
        self.ready = True
        return True

    def send(self) -> bool:
        try:
            return super().send()
        except ssl.SSLError as error:
            logger.debug("a TLS connection broke: %s", error.reason)
            return False

    def _take(self) -> bytes:
        fresh = self.session.take()
        if len(fresh) <= SLICE_BYTES:
            if fresh:
                self._tls.write(fresh)
            return self._outgoing.read() if self._outgoing.pending else b""
        pieces = []
        view = memoryview(fresh)
        for at in range(0, len(fresh), SLICE_BYTES):
            self._tls.write(view[at : at + SLICE_BYTES])
            pieces.append(self._outgoing.read())
        return b"".join(pieces)

    def _send_now(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(data)

    def _farewell(self) -> None:
        """Send what the machine still has to say, if there is room for it."""
        if self._outgoing.pending and not self.unsent:
            self._send_now(self._outgoing.read())

    def close(self, *, release: bool = True) -> None:
        if not self.closed and self.ready and not self.unsent:
            # Tells the peer that nothing was cut off.
            with contextlib.suppress(ssl.SSLError, OSError):
                self._tls.unwrap()
            self._farewell()
        super().close(release=release)
