"""``python -m qclient``: the same as the command ``qcore``."""

from __future__ import annotations

import sys

from qclient.cli import main

if __name__ == "__main__":
    sys.exit(main())
