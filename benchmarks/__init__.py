"""Measure speed and memory as ratios within one run; results lie in `benchmarks/results`."""
