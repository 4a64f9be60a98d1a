"""Model folders become what other programs run, and go to the hub.

options             options of `electra export`
folder              what every export does: the output folder, the card, checksums
onnx_model          a network as an ONNX graph, compared with ours by ONNX Runtime
onnx_int8           the same graph with weights of 8 bits, and what that costs
embedder            a folder of sentence-transformers, compared with `electra embed`
export              the function behind `electra export`
push                the function behind `electra push`
"""
