"""Fine-tuning: train a pre-trained encoder and a task's head, once for each seed.

recipe, options         settings of the recipe; options of the command
finetune                the functions that run all seeds, or all GLUE tasks
setup                   read, check and encode model, data and settings
dev_data                dev data held out of the training data
feature_cache           encoded examples, cached on disk
output_dir              the output folder: start, continue or refuse
session                 what all trainings of one command share
folds, seed_job         cross-validation; the trainings of one seed
search_plan, search     a search over settings
state, loop             the state of a training; its steps
early_stopping          the weights of the best evaluation
scoring                 scores, predictions and model of a trained seed
results, summary        the result files; how the scores of all seeds are summarised
similar_settings, similar_data, similar_setup, similar
                        `--task similar`: an embedder, trained by sentence-transformers
"""
