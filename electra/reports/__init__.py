"""Findings of trials, and results of fine-tunings, become tables, plots and pages."""
