"""Drawings and measures of what happened, from the events alone: values in, one HTML page out."""

from hpcdl.report.document import Table
from hpcdl.report.measures import JobMeasures, RunMeasures, measure
from hpcdl.report.page import Run, render, timeline_page
from hpcdl.report.spans import History, event_of, read_history

__all__ = [
    "History",
    "JobMeasures",
    "Run",
    "RunMeasures",
    "Table",
    "event_of",
    "measure",
    "read_history",
    "render",
    "timeline_page",
]
