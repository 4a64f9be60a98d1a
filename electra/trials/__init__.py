"""Weights become evidence: the paper's tables and figures as data, run at any budget, ours beside theirs."""
