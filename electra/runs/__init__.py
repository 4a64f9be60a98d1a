"""The folder of a run. It knows files and tensors by name, and no data, model or engine.

run_dir             the names of its files; status.json
lock                one command at a time
checkpoint          training state in safetensors and JSON
journal, progress   metrics.jsonl and the progress bar; the time left over several trainings
trackers            TensorBoard, wandb and trackio
signals             Ctrl-C and signals that ask a run to save and stop
"""
