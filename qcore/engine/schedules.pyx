"""Jobs that are added by the clock."""

from qcore.engine.flows cimport Flows


cdef class Schedules(Flows):
    """:class:`~qcore.engine.flows.Flows` with schedules."""
