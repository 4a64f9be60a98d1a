"""Findings become tables, plots and pages."""
