"""The memory that a training step takes, in closed form, itemised per term. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from electra.model.encoder_costs import costs_of
from electra.model.flops import block_parameters, parameters
from electra.model.shape import EncoderShape
from electra.model.workload import FLOAT, Network, Terms, Workload, logits_bytes

# Rows of logits in memory together where every position is predicted; backward computes them again.
LOGITS_CHUNK = 1024
LOW = 2  # bytes: bf16 and fp16
KERNEL_HEAD_WIDTH = 128  # of the widest heads that the kernels compute, where a card holds them
KERNEL_LOGITS = 16_384  # rows of logits whose gradients the kernels have in memory together
KERNEL_ROWS = 128  # of them, for which a bias has one partial sum
CUDA_GRAPHS = "CUDA graphs"
SCORES = "scores of held-out rows"
MORE_FOR_SCORES = "more while scores are taken"
WORKSPACE = 2**25  # bytes that torch gives cuBLAS for each stream, on a Hopper GPU


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """What a run keeps from step to step, and over how many processes it is sharded."""

    weight_shards: int | None = None  # and of gradients; None: without FSDP
    optimizer_shards: int = 1  # and of averaged weights; several with FSDP or ZeRO-1
    averaged: bool = False  # an average of the weights is kept
    muon: bool = False  # hidden matrices have a momentum, not the two states of AdamW


PLAIN = StateLayout()  # one process, AdamW


def training_bytes(
    work: Workload,
    *,
    rows: int,
    activation_bytes: int = FLOAT,
    activation_checkpointing: bool = False,
    layout: StateLayout = PLAIN,
    kernels: bool = False,
    on_cpu: bool = False,
) -> Terms:
    """Estimate a step's peak memory, itemised, for a micro-batch of `rows` full rows.

    `activation_bytes` is 2 under bf16 or fp16. `kernels` says that our own kernels take the step.
    Without them, assumes fused attention (no [T, T] scores kept), one-byte dropout masks, nothing
    recomputed but the logits of every position. A CPU keeps more (`on_cpu`: in float32). A compiler
    may keep less; an allocator rounds up. A frozen network has no gradients and no optimizer state,
    and of its activations only the logits are counted: nothing waits for a backward pass.
    """
    terms, cpu_length = state_bytes(work, layout), work.length if on_cpu else None
    if activation_bytes < FLOAT:  # whole wherever they are: backward keeps what forward cast
        weights = parameters(work).total * FLOAT
        terms["weights in low precision"] = weights * activation_bytes / FLOAT
    if kernels:
        if layout.muon:  # FlatMuon keeps the directions of updates
            terms["optimizer"] += LOW * hidden_matrix_values(work)
        return {**terms, **kernel_bytes(work, rows)}
    for network in work.networks():
        kept = sum(head.kept_bytes(network.shape, work, activation_bytes) for head in network.heads)
        if network.is_trained:
            kept += encoder_bytes(
                network.shape,
                activation_bytes,
                activation_checkpointing=activation_checkpointing,
                cpu_length=cpu_length,
            )
        terms[f"{network.name} activations"] = rows * work.length * kept
        if network.lm_head is not None and network.lm_head.predicts_everywhere:
            logits = min(rows * work.length, LOGITS_CHUNK)
            terms[f"{network.name} logits"] = logits * logits_bytes(work)
    return terms


def state_bytes(work: Workload, layout: StateLayout) -> Terms:
    """Return the bytes of weights, gradients and optimizer state in the process that has most."""
    counted = parameters(work)
    weights = counted.total * FLOAT
    trained = weights
    if not work.generator_is_trained:
        trained = weights - counted.generator * FLOAT
    own = trained / layout.optimizer_shards
    of_adamw = trained  # parameters with a second state
    if layout.muon:  # hidden matrices lie behind all others, so the first process has most states
        of_adamw -= FLOAT * hidden_matrix_values(work)
    processes = layout.weight_shards or 1
    terms: Terms = {
        "weights": weights / processes,
        "gradients": trained / processes,
        "optimizer": own + min(own, of_adamw),
    }
    if layout.averaged:
        terms["averaged weights"] = own
    if layout.weight_shards:
        terms["gathered weights and gradients"] = gathered_values(work) * FLOAT
    return terms


def gathered_values(work: Workload) -> int:
    """Count the values that FSDP holds whole beside the shards.

    All that is in no block, and two of the largest blocks: the one at work and the one that is
    fetched or sent off meanwhile. Each with its gradient.
    """
    shapes = [network.shape for network in networks_with_own_blocks(work)]
    in_blocks = sum(shape.layers * block_parameters(shape) for shape in shapes)
    largest = max(block_parameters(shape) for shape in shapes)
    return 2 * (parameters(work).total - in_blocks + 2 * largest)


def networks_with_own_blocks(work: Workload) -> list[Network]:
    """Return the networks of a workload; one where the generator is the main network's encoder."""
    return [
        network for network in work.networks() if network.name != "generator" or work.tie != "all"
    ]


def hidden_matrix_values(work: Workload) -> int:
    """Count the values of those matrices that Muon updates."""
    shapes = [network.shape for network in networks_with_own_blocks(work) if network.is_trained]
    return sum(shape.layers * costs_of(shape).block_matrix_values(shape) for shape in shapes)


def encoder_bytes(
    shape: EncoderShape,
    activation_bytes: int,
    *,
    activation_checkpointing: bool = False,
    cpu_length: int | None = None,
) -> float:
    """Return the bytes per token that an encoder's backward pass needs; `cpu_length` is the length
    of rows where a CPU computes them in float32.

    With activation checkpointing a block has kept only its input, and one of them at a time has all
    the rest.
    """
    embeddings = FLOAT * shape.embedding + activation_bytes * shape.embedding  # around the norm
    block = costs_of(shape).block_bytes(shape, activation_bytes)
    if cpu_length is not None:
        block += costs_of(shape).cpu_block_bytes(shape, cpu_length)
    blocks = shape.layers * block
    if activation_checkpointing:
        blocks = shape.layers * FLOAT * shape.width + block
    return embeddings + shape.embedding + blocks


# ---- with our own kernels ------------------------------------------------------------------------


def reserved_bytes(work: Workload, terms: Terms, *, scored_rows: int) -> Terms:
    """Return what a run with CUDA graphs reserves beside the terms of `training_bytes`.

    A shape of batch runs plainly once and is then captured, and the allocator keeps the memory of
    both. Later graphs share that of the first, which is the largest. The logits of `scored_rows`
    held-out rows are larger than any block of these, so they have memory of their own, which is
    kept while there is room.
    """
    pool = sum(size for name, size in terms.items() if name.endswith("activations"))
    scores = scoring_bytes(work, scored_rows * work.length)
    return {CUDA_GRAPHS: pool, SCORES: max(0.0, scores - terms.get(MORE_FOR_SCORES, 0.0))}


def scoring_bytes(work: Workload, tokens: int) -> float:
    """Return the bytes of the logits with which plain modules score held-out tokens."""
    total = 0.0
    for network in work.networks():
        predicted = predicted_tokens(network, work, tokens)
        if network.lm_head is not None and network.lm_head.predicts_everywhere:
            predicted = min(predicted, LOGITS_CHUNK)
        total += logits_bytes(work) * predicted
    return total


def kernel_bytes(work: Workload, rows: int) -> Terms:
    """Return what forward keeps in low precision, and the most that backward has beside it.

    The main network goes back first, and has left when the generator does.
    """
    tokens = rows * work.length
    terms: Terms = {}
    gradients = []
    for network in work.networks():
        terms[f"{network.name} activations"] = kernel_activation_bytes(network, work, tokens)
        gradients.append(kernel_gradient_bytes(network, work, tokens))
    first, *others = gradients
    main = next(iter(terms.values()))
    terms["gradients of activations"] = max([first, *(each - main for each in others)])
    # Plain modules take the scores, and nothing else is kept then.
    if (more := scoring_bytes(work, tokens) - sum(terms.values())) > 0:
        terms[MORE_FOR_SCORES] = more
    terms["workspaces"] = 2 * WORKSPACE  # micro-batches have a stream of their own
    return terms


def predicted_tokens(network: Network, work: Workload, tokens: int) -> float:
    """Return how many of `tokens` have their word predicted."""
    if network.lm_head is None:
        return 0
    if network.lm_head.predicts_everywhere:
        return tokens
    return tokens * work.mask_rate


def kernel_activation_bytes(network: Network, work: Workload, tokens: int) -> float:
    if not network.is_trained:
        return 0
    shape = network.shape
    head: float = LOW * shape.width * tokens
    if network.lm_head is not None:
        predicted = predicted_tokens(network, work, tokens)
        head = LOW * (shape.width + 3 * shape.embedding) * predicted
    return tokens * kernel_encoder_bytes(shape) + head


def kernel_gradient_bytes(network: Network, work: Workload, tokens: int) -> float:
    if not network.is_trained:
        return 0
    predicted = predicted_tokens(network, work, tokens)
    logits = LOW * min(predicted, KERNEL_LOGITS) + FLOAT * predicted / KERNEL_ROWS
    shape = network.shape
    feedforward = (costs_of(shape).gated + 1) * shape.feedforward
    block = LOW * (3 * shape.width + feedforward) * tokens
    return max(block, logits * work.vocabulary)


def kernel_encoder_bytes(shape: EncoderShape) -> float:
    """Return the bytes per token that the kernels keep of an encoder.

    A block's input, its queries, keys and values, their context, and both sides of the gelu; of the
    paper's also both branches before their norm, and what lies between; of ModernBERT's the stream
    after both, and what the second branch reads.
    """
    costs = costs_of(shape)
    feedforward = (costs.gated + 1) * shape.feedforward
    block = LOW * (8 * shape.width + feedforward) + FLOAT * shape.heads
    outside = shape.width
    if shape.has_projection:
        outside += shape.embedding + costs.norms_projection * 3 * shape.width
    return shape.layers * block + LOW * outside
