"""A pre-trained encoder becomes a model of one task."""
