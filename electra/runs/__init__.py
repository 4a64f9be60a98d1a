"""What a run leaves on disk and how it goes on: folder, checkpoints, metrics, lock, signals."""
