"""Hidden states become a pre-training loss.

objective               the interface of every objective
settings                what a recipe may say of each
rtd, adversarial        ELECTRA; ELECTRA with an adversarial generator
mlm, next_sentence      BERT, without and with next sentence prediction
left_to_right           a causal LM
restore                 Replace MLM and All-Tokens MLM
masking_objective, generating
                        base classes: objectives that mask; those that have a generator
masking, corruption     settings of masking; masking and replacing tokens
vocabulary              the size of a vocabulary and its special ids
measures, metrics       losses and sums of a batch; the held-out metrics and their baselines
trace                   one sentence through both networks

To add an objective, write a settings class with `@register` and a module.
"""
