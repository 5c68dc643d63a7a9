"""Write the tables of docs/reference/protocol.md anew: ``python docs/protocol_page.py`` in the checkout."""

from __future__ import annotations

from pathlib import Path

from qcore.wire.describe import protocol_tables

PAGE = Path(__file__).parent / "reference/protocol.md"
MARK = "<!-- From here on written by docs/protocol_page.py; change the command table instead. -->\n"


def page() -> str:
    """The page as it should be: its introduction as it is, and the tables."""
    introduction, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has lost the line {MARK!r}")
    return f"{introduction}{mark}\n{protocol_tables()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
