"""A simulator: whole lives of a broker from a seed, beside a plain model of what must happen."""

from qcore.simulate.matching import Failure
from qcore.simulate.run import Result, replay, simulate
from qcore.simulate.shrink import shrink

__all__ = ["Failure", "Result", "replay", "shrink", "simulate"]
