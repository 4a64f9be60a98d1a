"""The paper's tables and figures as data, run at any budget."""
