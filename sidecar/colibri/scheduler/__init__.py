"""Admission: who may generate now, who waits, who is turned away."""

from colibri.scheduler.admission import Scheduler
from colibri.scheduler.generation import Activity, Generation, GenerationRequest

__all__ = ["Activity", "Generation", "GenerationRequest", "Scheduler"]
