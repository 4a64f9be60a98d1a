"""One update: train_step, cuda_graph, optimizer, flat_optimizer, flat_adamw, hardware, settings.
Processes: distributed, collectives, rendezvous, heartbeat, fsdp.
State: training_state, async_checkpoint.
"""
