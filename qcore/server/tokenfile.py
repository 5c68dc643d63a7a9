"""Tokens from a file, one a line."""

from __future__ import annotations

import logging
import os
import stat

from qcore.errors import ConfigError

logger = logging.getLogger("qcore.server")

#: No list of tokens is larger; what is was named by mistake.
MAX_TOKEN_FILE_BYTES = 1 << 20


def read_tokens(path: str, option: str = "--token-file") -> tuple[str, ...]:
    """The tokens of a file, at least one, trimmed; empty lines say nothing.

    A file that everybody can read or write is used, with a warning.

    :raises ConfigError: the file cannot be read or holds no token; never shows what is in it
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a usable path"
        raise ConfigError(f"{option}: cannot read {path}: {why}") from None
    if len(content) > MAX_TOKEN_FILE_BYTES:
        raise ConfigError(f"{option}: {path} is larger than {MAX_TOKEN_FILE_BYTES} bytes")
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: {path} is not UTF-8 text") from None
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens:
        # Going on would leave a server open that was meant to be closed.
        raise ConfigError(f"{option}: {path} holds no token, expected one a line")
    if os.name == "posix" and stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
        logger.warning("%s: every user of this machine has access to %s; chmod 600 it", option, path)
    return tokens
