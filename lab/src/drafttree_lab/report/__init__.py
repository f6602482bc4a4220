"""The report of a replay: one HTML file with every table, figure and verdict, which needs nothing else to be read."""

from drafttree_lab.report.page import write_report

__all__ = ["write_report"]
