"""Admission: who may generate now, who waits, who is turned away."""

from colibri.scheduler.admission import Generation, GenerationRequest, Scheduler

__all__ = ["Generation", "GenerationRequest", "Scheduler"]
