"""One update: train_step, cuda_graph, optimizer, muon, clipping, ema, hardware, settings.
In flat buffers: flat_optimizer, flat_adamw, flat_muon, flat_shard, gradient_buckets.
Processes: distributed, collectives, rendezvous, heartbeat, stop_votes, fsdp.
State: training_state, async_checkpoint.
"""
