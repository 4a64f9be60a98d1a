"""Measure speed and memory as ratios within one run; results are in `benchmarks/results`."""
