"""``qcore demo``: count the names in the source files of the standard library.

One job for each file, several processes that count, and a result that is merged
from the results which the engine kept. It uses the public client only, so it can
be read as an example.
"""

from __future__ import annotations

from qclient.demo.run import DemoOptions, Summary, run_demo

__all__ = ["DemoOptions", "Summary", "run_demo"]
