"""Losses become weights.

recipe, options     what a run is asked to do
budget              a share of a recipe's steps, with a schedule of its own
pretrain            the Python function: set up, train, export
setup, resolve      build a run; decide what its recipe leaves open
resume              start or continue, as a run folder says
run, loop           the state of a run; its steps
export              networks to and from transformers folders
verdict             what the networks know beyond their baselines
diagnosis           warnings about recipes and numbers that are not finite
"""
