"""What follows from the end of a job for others: dependents, parents, successors."""

from qcore.engine.losses cimport Losses


cdef class Flows(Losses):
    """:class:`~qcore.engine.losses.Losses` with the ties between jobs."""
