"""Hidden states become a pre-training loss.

`objective.py` says what an objective is, `settings.py` what a recipe may say of it; each of the
others is one. To add an objective is to write a settings class with `@register` and a module.
"""
