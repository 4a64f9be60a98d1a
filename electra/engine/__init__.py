"""One update: gradients of micro-batches, then a step of the optimizer.

settings                settings of optimizer, precision and speed
hardware                precision, kernels and memory of this machine
train_step, cuda_graph  one training step; its passes as CUDA graphs
optimizer, clipping     parameter groups and schedule; gradient clipping
muon, ema               Muon; the moving average of the weights
flat_optimizer, flat_adamw, flat_muon
                        the same optimizers over flat buffers, by kernels
flat_shard, gradient_buckets
                        ZeRO-1; gradients summed while backward still runs
distributed, collectives, rendezvous
                        the processes of a run
heartbeat, stop_votes   which process hangs; whether one asks to stop
fsdp                    FSDP2
training_state          weights and optimizer state as named tensors
async_checkpoint        checkpoints written while training continues
"""
