"""Fine-tuning: train a pre-trained encoder and a task's head, once for each seed."""
