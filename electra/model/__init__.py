"""Token ids become hidden states.

One legend of shapes for the package: `B` batch, `T` tokens, `P` predicted positions, `D` width, `E`
embedding width, `H` heads, `K` head width, `V` vocabulary.
"""
