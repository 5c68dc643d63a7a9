"""What follows from the end of a job for others: dependents, parents, successors."""

from qcore.engine.transitions cimport Transitions


cdef class Flows(Transitions):
    """:class:`~qcore.engine.transitions.Transitions` with the ties between jobs."""
