"""The public surface of ``bunqueue-client`` from PyPI, in front of our server and of the reference.

``pypi_surface.py`` calls it section by section. What its user sees has to be what
``record.py`` wrote down of the reference server, but for the flows of this client,
which the reference refuses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pypi_surface

RECORDED = Path(__file__).parents[1] / "data" / "surface_pypi.json"


@pytest.fixture(scope="session")
def surfaces(port_of: Callable[[str, str], int]) -> dict[str, dict[str, Any]]:
    """What the client saw of each server, by section."""
    ports = {storage: port_of(storage, "") for storage in ("memory", "sqlite")}
    with ThreadPoolExecutor(len(ports)) as pool:
        seen = dict(zip(ports, pool.map(pypi_surface.seen, ports.values()), strict=True))
    return seen | {"reference": json.loads(RECORDED.read_text("utf-8"))}


#: The reference refuses flows in which children come first, under a parent that is not there yet.
OURS_ALONE: dict[str, Any] = {
    "flow_failures": [
        {
            "fail_parent_on_failure": ["failed", [], []],
            "ignore_dependency_on_failure": ["waiting", [], ["child broke"]],
            "continue_parent_on_failure": ["waiting", ["child broke"], []],
            "remove_dependency_on_failure": ["waiting", [], []],
        },
        ["delayed", "unknown"],
    ],
}


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
@pytest.mark.parametrize("section", [name for name in pypi_surface.SECTIONS if name not in ("flows",)])
def test_the_client_sees_what_it_sees_of_the_reference(
    surfaces: dict[str, dict[str, Any]], section: str, storage: str
) -> None:
    ours = surfaces[storage][section]
    assert "threw" not in ours, ours["threw"]
    assert ours == OURS_ALONE.get(section, surfaces["reference"][section])


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_their_flows(surfaces: dict[str, dict[str, Any]], storage: str) -> None:
    """The reference refuses them, so what they do is said here."""
    seen = surfaces[storage]["flows"]
    assert "threw" not in seen, seen["threw"]
    states, (whole, shallow), missing, sizes, counts, values, in_order, last, final, children = seen
    assert states == ["waiting-children", "waiting", "waiting-children"]
    queue, data, (left, right) = whole
    assert (queue, data["top"], left[1]["left"], right[1]["right"]) == ("RUN-flows", 1, 1, 1)
    assert [leaf[1]["leaf"] for leaf in right[2]] == [1]
    assert (len(shallow[2]), shallow[2][1][2]) == (2, [])
    assert missing is None
    assert sizes == [3, 2, 2]
    assert [c["waiting-children"] for c in counts] == [1, 1 + 2 + 1]
    assert values == {"top": ["left done", "right done"], "then": ["p0 done", "p1 done"]}
    assert in_order
    assert last
    assert final == "top"
    assert children == ["left done", "right done"]


def test_what_the_client_sees_is_something(surfaces: dict[str, dict[str, Any]]) -> None:
    """Two servers that answer nothing would agree as well."""
    seen = surfaces["memory"]
    assert seen["concurrency"] == [True, True, 2 * sum(range(150))]
    assert seen["retries"][0] == {"flaky": 3, "doomed": 2, "final": 1, "gone": 1}
    assert seen["groups"] == [[[0, 1, 2]] * 3, 9]
    assert len(seen["worker"][1]) == 9
    assert seen["webhooks"][0][0]["enabled"] is False
    assert seen["webhooks"][1] == []
