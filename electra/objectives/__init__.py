"""Vectors become a pre-training loss."""
