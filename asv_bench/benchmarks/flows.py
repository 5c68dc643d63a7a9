"""Dependencies: their cost does not grow with what was completed, and linearly with children."""

from __future__ import annotations

from qcore.engine.engine import Engine

NOW = 1_700_000_000_000


class Resolution:
    """A dependent and its dependency, removed on completion, beside so many completed ids."""

    params = (0, 1_000, 50_000)
    param_names = ("evidence",)

    def setup(self, evidence: int) -> None:
        self.engine = Engine(bytes(16))
        for _ in range(evidence):
            self.engine.push("q", None, NOW, remove_on_complete=True)
            job = self.engine.pull("q", NOW, 0)
            assert job is not None
            self.engine.ack(job[0], NOW)

    def time_pair(self, evidence: int) -> None:
        engine = self.engine
        for _ in range(100):
            first = engine.push("q", None, NOW, remove_on_complete=True)
            engine.push("q", None, NOW, remove_on_complete=True, extra={"dependsOn": [first]})
            for _ in range(2):
                job = engine.pull("q", NOW, 0)
                assert job is not None
                engine.ack(job[0], NOW)


class Children:
    """A parent whose children all complete."""

    params = (10, 1_000, 10_000)
    param_names = ("children",)

    def time_complete(self, children: int) -> None:
        engine = Engine(bytes(16))
        engine.push("top", None, NOW, job_id="p")
        for _ in range(children):
            engine.push("kids", None, NOW, extra={"parentId": "p"})
        while (job := engine.pull("kids", NOW, 0)) is not None:
            engine.ack(job[0], NOW)
        assert engine.state("p") == "waiting"
