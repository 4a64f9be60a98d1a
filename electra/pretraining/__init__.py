"""Losses become weights.

recipe, options     settings of the recipe; options of the command
budget              a share of a recipe's steps, with a complete schedule
dry_run             check everything that a run needs, and write nothing
pretrain            the Python function: set up, train, export
setup, resolve      build a run; decide what its recipe leaves open
resume, origin      start or continue, as a run folder says; what a run began from
asked_data          refuse data settings that shards or a tokenizer contradict
run, loop           the state of a run; its steps
export              networks to and from transformers folders
verdict             what the networks know beyond their baselines
objective_checks    what the methods of an objective return
diagnosis           warnings about recipes and numbers that are not finite
"""
