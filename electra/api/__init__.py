"""The functions of `import electra`: the options of the commands as keywords, results as objects.

keywords        options become keywords that `help` lists; messages speak of keywords
rows            tables from files, DataFrames and lists of dicts
random_numbers  one training of a process at a time draws random numbers
results         what the functions return, also as HTML for notebooks
recipes         load_recipe
pretraining     pretrain
finetuning      finetune
exporting       export, push
model           load, evaluate, embed, and the methods of a model
"""
