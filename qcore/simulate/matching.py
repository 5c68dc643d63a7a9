"""What a model predicts and what a broker said, held against each other.

A model cannot know the ids and tokens that a broker draws. It makes up its own, in
the same order, and learns which is which when one is first seen in a reply.
"""

from __future__ import annotations

import re
from typing import Any

_PLAIN = frozenset((str, int, bool, float, type(None)))
MODEL_ID = re.compile(r"00000000-0000-7000-8000-\d{12}")


class Failure(AssertionError):
    """The broker and the model differ, or a promise was broken."""


class Id(str):
    """A job id of the model in a predicted reply."""

    __slots__ = ()


class Token(str):
    """A lease token of the model in a predicted reply."""

    __slots__ = ()


class Some(dict[str, Any]):
    """A map of which only these fields are predicted."""


class Values(dict[str, Any]):
    """A map whose keys end with job ids of the model, in the order in which the broker has them."""


class Names:
    """Which id and token of the broker is which of the model."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}
        self._model: dict[str, str] = {}
        #: Tokens that clients know, by the model's job id, oldest first.
        self.tokens: dict[str, list[str]] = {}
        self.token_model: dict[str, str] = {}

    def bind(self, model: str, real: str) -> None:
        known = self._model.get(real)
        if known is None and model not in self._real:
            self._real[model] = real
            self._model[real] = model
        elif known != model:
            raise Failure(
                f"expected job {model} ({self._real.get(model, 'not seen yet')}), got {real} (job {known})"
            )

    def real(self, model: str) -> str | None:
        return self._real.get(model)

    def model(self, real: str) -> str | None:
        return self._model.get(real)

    def bind_token(self, job: str, model: str, real: object) -> None:
        if not isinstance(real, str):
            raise Failure(f"expected the token of a delivery of {job}, got {real!r}")
        if self.token_model.setdefault(real, model) != model:
            raise Failure(f"token {real} was given out twice")
        held = self.tokens.setdefault(job, [])
        held.append(real)
        del held[:-4]

    def _told(self, text: str) -> str:
        """A text of the model with the ids of the broker."""
        return MODEL_ID.sub(lambda found: self._real.get(found[0], found[0]), text)

    def _learn(self, expected: Values, got: dict[str, Any]) -> None:
        """Bind the ids in keys that nobody has seen before: the replies that told them were lost."""
        ids = [found[0] for name in expected if (found := MODEL_ID.search(name)) is not None]
        unseen = [name[-36:] for name in got if name[-36:] not in self._model]
        for model, real in zip([one for one in ids if one not in self._real], unseen, strict=False):
            self.bind(model, real)

    def match(self, expected: Any, got: Any, where: str) -> None:
        """Raise Failure where ``got`` is not what was expected."""
        if isinstance(expected, Id):
            if not isinstance(got, str):
                raise Failure(f"{where}: expected the id of {expected}, got {got!r}")
            self.bind(expected, got)
        elif isinstance(expected, Token):
            job, _, token = expected.partition("/")
            self.bind_token(job, token, got)
        elif isinstance(expected, dict):
            if not isinstance(got, dict):
                raise Failure(f"{where}: expected {expected}, got {got!r}")
            if isinstance(expected, Values):
                self._learn(expected, got)
                expected = {self._told(name): value for name, value in expected.items()}
            if not isinstance(expected, Some) and expected.keys() != got.keys():
                raise Failure(f"{where}: expected {expected}, got {got}")
            for key, value in expected.items():
                if key not in got:
                    raise Failure(f"{where}.{key} is missing in {got}")
                said = got[key]
                if type(value) in _PLAIN and value == said and type(value) is type(said):
                    continue  # most fields; the rest of this procedure is for the others
                self.match(value, said, f"{where}.{key}")
        elif isinstance(expected, list | tuple):
            if not isinstance(got, list | tuple) or len(got) != len(expected):
                raise Failure(f"{where}: expected {expected}, got {got}")
            for i, value in enumerate(expected):
                self.match(value, got[i], f"{where}[{i}]")
        elif isinstance(expected, str) and MODEL_ID.search(expected) is not None:
            said = self._told(expected)
            if said != got:
                raise Failure(f"{where}: expected {said!r}, got {got!r}")
        elif expected != got or isinstance(expected, bool) != isinstance(got, bool):
            raise Failure(f"{where}: expected {expected!r}, got {got!r}")
