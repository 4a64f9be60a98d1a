"""Token ids become hidden states.

shape                       the sizes of a network, as settings
encoder, attention, gelu, dropout
                            what the encoders of all families have in common
electra_encoder, modernbert_encoder
                            the encoders of the two families
networks, modernbert_networks
                            generator and discriminator: an encoder and a head each
disentangled, sampling      embeddings with separate gradients; tokens drawn from logits
layers                      which layers of a frozen encoder are read
family, electra_family, modernbert_family, families
                            the names that transformers has for both; building by family
huggingface, model_config, weight_files
                            our weights ⇄ a transformers folder; its settings; its files
verify                      the same logits by stock transformers
card, card_content          the model card
workload, encoder_costs, flops, memory
                            FLOPs, parameters and memory, without torch

One legend of shapes for the package: `B` batch, `T` tokens, `P` predicted positions, `D` width, `E`
embedding width, `H` heads, `K` head width, `V` vocabulary.
"""
