"""The folder of a run: run_dir (its files), checkpoint, journal (metrics), lock, signals.
It knows files and tensors by name, and no data, model or engine.
"""
