"""Losses become weights.

recipe, options     what a run is asked to do
pretrain            the Python function: set up, train, export
setup, resolve      build a run; decide what its recipe leaves open
resume              start or continue, as a run folder says
run, loop           the state of a run; its steps
export              networks to and from transformers folders
diagnosis           warnings about recipes, plateaus and numbers that are not finite
"""
