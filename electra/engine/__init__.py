"""One update: gradients of micro-batches, the optimizer, CUDA graphs, several processes."""
