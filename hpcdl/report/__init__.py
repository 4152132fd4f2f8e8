"""Drawings and measures of what happened, from the events alone: values in, one HTML page out."""

from hpcdl.report.history import History
from hpcdl.report.html import HtmlTable
from hpcdl.report.measures import JobMeasures, RunMeasures, measure
from hpcdl.report.page import ReportedRun, render, timeline_page
from hpcdl.report.spans import event_of, read_history

__all__ = [
    "History",
    "HtmlTable",
    "JobMeasures",
    "ReportedRun",
    "RunMeasures",
    "event_of",
    "measure",
    "read_history",
    "render",
    "timeline_page",
]
