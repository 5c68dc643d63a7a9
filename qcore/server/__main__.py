"""``python -m qcore.server``: the same as ``qcore start``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qcore.errors import QError, complain, one_line
from qcore.server.loop import serve
from qcore.server.options import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server. Exit code 2 and one line on stderr when it cannot start."""
    try:
        return serve(parse(sys.argv[1:] if argv is None else argv))
    except QError as error:
        complain(f"qcore start: {one_line(error)}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
