"""Hand-written GPU kernels (Triton): the same computations as the plain modules, in fewer passes
over memory.

A 16k-token step of Small moves little data in many small operations, and the GPU waits for the next
one, or for memory, far longer than for arithmetic. So everything between two matrix products is one
kernel here, and no kernel's result depends on the order in which its parts happen to finish: the
same step gives the same bits.

    dropout               masks from a hash of keys and indices: computed again, never stored
    norm                  dropout, residual and LayerNorm
    activation            gelu and GeGLU
    packing               rows of tokens, padding left out
    rotary                queries and keys turned by their positions
    attention             softmax(QKᵀ)V inside rows, with dropout
    attention_backward    its gradients
    attention_one_pass    its gradients in long rows, each score computed once
    attention_scores      the pieces of these
    corruption            masking, and samples in place of masked tokens
    embeddings            word, position and token-type embeddings, summed and normalised
    embedding_tables      the gradients of their tables
    linear                projections, without casts
    gather                hidden states of chosen positions
    rtd_head              the discriminator's head
    mlm_head              the generator's, up to the vocabulary
    linear_cross_entropy, linear_cross_entropy_kernels
                          the vocabulary's cross-entropy and a sample, without logits in memory
    block                 the paper's transformer block of these and matrix products
    narrow_block, narrow_block_forward, narrow_block_backward
                          the same in one kernel forward and two backward, where it is narrow
    modernbert_block      ModernBERT's
    weight_grads          the gradients of a block's matrices
    deferred_grads        gradients of many blocks at once, past autograd
    adamw                 clipping and AdamW over all weights at once
    muon                  momentum and update of all hidden matrices at once
    tiles                 how kernels are cut into programs, in one table
    column_sums           sums of the partial results of several programs
    low_precision         the optimizer's low-precision copies of weights
    fused_modules         the modules of model and objectives, by these functions
    fused_modernbert      those of the ModernBERT family
    fused_bases           what both families have in common

The plain path stays the reference: an objective runs it unless `fuse` was called, and tests compare
the two. Triton's interpreter (TRITON_INTERPRET=1) runs the kernels without a GPU.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from electra.kernels.low_precision import LowPrecisionCopies
from electra.model.memory import KERNEL_HEAD_WIDTH

# Compute capabilities with the shared memory that heads wider than 64 need.
LARGE_SHARED_MEMORY = {(8, 0), (9, 0), (10, 0), (10, 3)}


def is_supported(device: torch.device, *, head_width: int) -> bool:
    """Return whether Triton is installed and `device` is an NVIDIA GPU whose multiprocessors hold
    blocks of heads of `head_width`.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return False
    widest = KERNEL_HEAD_WIDTH if capability in LARGE_SHARED_MEMORY else 64
    return head_width <= widest


def fuse(module: nn.Module) -> LowPrecisionCopies:
    """Exchange every module inside for its fused form, where it has one.

    Return the registry in which an optimizer may enter the low-precision copies that it keeps of
    the parameters; without them, weights are cast in every pass.
    """
    from electra.kernels.fused_modules import FUSED, exchange

    copies = LowPrecisionCopies()
    exchange(module, FUSED, copies)
    return copies


def unfuse(module: nn.Module) -> None:
    """Exchange every fused module inside for its plain form."""
    from electra.kernels.fused_modules import PLAIN, exchange

    exchange(module, PLAIN, LowPrecisionCopies())


def low_precision_matrices(module: nn.Module) -> set[nn.Parameter]:
    """Return the matrices of fused blocks, which kernels read from low-precision copies alone."""
    from electra.kernels.fused_bases import PackedEncoder

    matrices: set[nn.Parameter] = set()
    for encoder in module.modules():
        if isinstance(encoder, PackedEncoder):
            matrices.update(each for each in encoder.blocks.parameters() if each.ndim == 2)
    return matrices
