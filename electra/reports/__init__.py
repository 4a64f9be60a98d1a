"""Findings of trials, and results of fine-tunings, become tables, plots and pages.

blocks, markdown, html  the parts of a page, and how they are rendered
numbers, figure_style   how numbers are written and figures look
report                  the page about trials, of these sections:
  banner                  scale, budget and text
  samples, tables         scores by seed; tables beside the published ones
  comparison, order       which arm is better; our order beside the paper's
  plateau                 whether the networks have learned anything
  figures, curves, score_figures
                          figures of scores, costs and held-out metrics
  missing, settings       what was not run; settings, versions and hardware
finetune_report, finetune_figures
                        the page about a fine-tuning
evaluation_report       the page about an evaluation
analysis                what a model gets wrong, as part of both
"""
