"""How a client checks the server that it talks TLS with, and shows who it is itself."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from qclient.checks import filled, flag
from qcore.errors import ConfigError

_log = logging.getLogger("qclient")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """Settings of TLS; without any, the certificates that the system trusts, and the name in the URL.

    ``ca_file``: trust these instead. ``verify=False``: trust anybody; whoever is on the way can
    read and change everything, the token too. ``server_name``: the name in the certificate, where
    it is not the one in the URL. ``cert_file``, ``key_file``: for servers that ask clients for one.
    """

    ca_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca_file", "server_name", "cert_file", "key_file"):
            if getattr(self, name) is not None:
                filled(getattr(self, name), name)
        flag(self.verify, "verify")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("TLS: cert_file and key_file need each other")
        if not self.verify and self.ca_file is not None:
            raise ConfigError("TLS: ca_file says whom to trust and verify=False trusts anybody, expected one")

    def context(self) -> ssl.SSLContext:
        """The settings as ``ssl`` wants them; files are read again when they have changed.

        :raises ConfigError: a file cannot be read or is not what it should be
        """
        times: list[object] = [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
        for path in (self.ca_file, self.cert_file, self.key_file):
            if path is not None:
                try:
                    times.append(os.stat(path).st_mtime_ns)
                except (OSError, ValueError) as error:
                    why = getattr(error, "strerror", None) or "not a usable path"
                    raise ConfigError(f"TLS: cannot read {path}: {why}") from None
        return _context(self, tuple(times))


@lru_cache(16)
def _context(tls: TLS, times: tuple[object, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        _log.warning("TLS without a check of the server: whoever is on the way can read everything")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(tls.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"TLS: {tls.ca_file} holds no certificates that can be read: {_why(error)}"
            ) from None
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"TLS: {tls.cert_file} and {tls.key_file} are no certificate and its key: {_why(error)}"
            ) from None
    return context


def _refuse_password() -> NoReturn:
    raise ValueError("the key is encrypted")  # otherwise the terminal is asked


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def refused_handshake(error: ssl.SSLError) -> str:
    """What went wrong in a handshake, in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING") or isinstance(
        error, ssl.SSLEOFError
    ):
        return "it speaks no TLS; a server without it is named tcp://"
    return f"the TLS handshake failed: {error.reason or error}"
