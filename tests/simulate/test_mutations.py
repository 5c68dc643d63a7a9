"""The planted faults still fit the sources."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("planted_mutations", HERE / "mutations.py")
assert _spec is not None
assert _spec.loader is not None
mutations = importlib.util.module_from_spec(_spec)
sys.modules["planted_mutations"] = mutations
_spec.loader.exec_module(mutations)


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_fault_has_its_place(mutation: object) -> None:
    assert isinstance(mutation, mutations.Mutation)
    text = (HERE.parent.parent / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old
    if mutation.file.endswith(".py"):
        compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")
