"""The memory that a training step takes, in closed form, itemised per term. No torch."""

from __future__ import annotations

from electra.model.flops import Head, Terms, Workload, block_parameters, parameters
from electra.model.shape import EncoderShape

ROWS_OF_LOGITS = (
    1024  # in memory together where every position is predicted; backward computes them again
)
EVERYWHERE = ("all-tokens", "left-to-right")  # heads for which that is so
# bytes: weights, gradients, Adam's two slots, norms and losses are float32 whatever the precision
FLOAT = 4
LOW = 2  # bytes: bf16 and fp16
KERNEL_LOGITS = 16_384  # rows of logits whose gradients the kernels have in memory together
KERNEL_ROWS = 128  # of them, for which a bias has one partial sum
WORKSPACE = (
    2**25
)  # bytes that torch gives cuBLAS for each stream, on a card of the Hopper generation


def training_bytes(
    work: Workload,
    *,
    rows: int,
    activation_bytes: int = FLOAT,
    recomputed: bool = False,
    spread_over: int | None = None,
    kernels: bool = False,
) -> Terms:
    """An estimate of a step's peak, itemised: `rows`, full ones, in one micro-batch,
    `activation_bytes` 2 under bf16 or fp16; `recomputed` where backward computes blocks again,
    `spread_over` so many processes where they share weights out, `kernels` where our own take the
    step.

    Without those, assumes fused attention (no [T, T] scores kept), one-byte dropout masks, nothing
    else recomputed but the logits of every position. A compiler may keep less; an allocator rounds
    up. A frozen network has no gradients and no slots, and of its activations only the largest is
    counted, its logits: nothing waits for a backward pass.
    """
    counted = parameters(work)
    weights = counted.total * FLOAT
    learnt = weights if work.generator_is_trained else weights - counted.generator * FLOAT
    parts = spread_over or 1
    terms: Terms = {
        "weights": weights / parts,
        "gradients": learnt / parts,
        "optimizer": 2 * learnt / parts,
    }
    if spread_over:
        terms["gathered weights and gradients"] = gathered_at_once(work) * FLOAT
    if activation_bytes < FLOAT:  # whole wherever they are: backward keeps what forward cast
        terms["weights in low precision"] = weights * activation_bytes / FLOAT
    if kernels:
        return {**terms, **kept_by_kernels(work, rows)}
    for name, shape, head in work.networks():
        per_token = kept_by_head(shape, head, work, activation_bytes)
        if name != "generator" or work.generator_is_trained:
            per_token += kept_by_encoder(shape, activation_bytes, recomputed=recomputed)
        terms[f"{name} activations"] = rows * work.length * per_token
        if head in EVERYWHERE:
            terms[f"{name} logits"] = min(rows * work.length, ROWS_OF_LOGITS) * kept_of_logits(work)
    return terms


def gathered_at_once(work: Workload) -> int:
    """Numbers that lie whole beside the parts: all that is in no block, and two of the largest
    blocks, the one at work and the one that is fetched or sent off meanwhile; each with its
    gradient.
    """
    shapes = [
        shape for name, shape, _ in work.networks() if name != "generator" or work.tie != "all"
    ]
    in_blocks = sum(shape.layers * block_parameters(shape) for shape in shapes)
    return 2 * (
        parameters(work).total - in_blocks + 2 * max(block_parameters(shape) for shape in shapes)
    )


def kept_by_encoder(
    shape: EncoderShape, activation_bytes: int, *, recomputed: bool = False
) -> float:
    """Bytes per token that the backward pass needs. Computed again, a block has kept its input
    alone, and one of them at a time has all the rest.
    """
    width = shape.width
    embeddings = (
        FLOAT * shape.embedding + activation_bytes * shape.embedding
    )  # into the norm; out of it
    kept = activation_bytes * (
        6 * width + 2 * shape.feedforward
    )  # in, q, k, v, mixed, normed; around the gelu
    norms = 2 * FLOAT * width
    dropout = 2 * width
    log_sums = FLOAT * shape.heads
    block = kept + norms + dropout + log_sums
    blocks = shape.layers * FLOAT * width + block if recomputed else shape.layers * block
    return embeddings + shape.embedding + blocks


def kept_by_head(shape: EncoderShape, head: Head, work: Workload, activation_bytes: int) -> float:
    if head == "rtd":
        return activation_bytes * 3 * shape.width
    hidden = activation_bytes * (shape.width + 2 * shape.embedding) + FLOAT * shape.embedding
    return hidden if head in EVERYWHERE else work.mask_rate * (hidden + kept_of_logits(work))


def kept_of_logits(work: Workload) -> float:
    """Bytes per predicted word: logits, their log-softmax, and the gradient that meets both."""
    return 3 * FLOAT * work.vocabulary


# ---- by our own kernels --------------------------------------------------------------------------


def kept_by_kernels(work: Workload, rows: int) -> Terms:
    """What forward keeps, all of it in low precision, and the most that backward has beside it: the
    main network goes back first, and has left when the generator does.
    """
    tokens = rows * work.length
    terms, beside, scoring = {}, [], 0.0
    for name, shape, head in work.networks():
        learns = name != "generator" or work.generator_is_trained
        predicted = tokens * (0 if head == "rtd" else 1 if head in EVERYWHERE else work.mask_rate)
        answers = (
            LOW * shape.width * tokens
            if head == "rtd"
            else LOW * (shape.width + 3 * shape.embedding) * predicted
        )
        terms[f"{name} activations"] = learns * (tokens * kept_by_kernel_encoder(shape) + answers)
        logits = LOW * min(predicted, KERNEL_LOGITS) + FLOAT * predicted / KERNEL_ROWS
        on_the_way = max(
            LOW * (3 * shape.width + 2 * shape.feedforward) * tokens, logits * work.vocabulary
        )
        beside.append(learns * on_the_way)
        scoring += kept_of_logits(work) * (
            min(predicted, ROWS_OF_LOGITS) if head in EVERYWHERE else predicted
        )
    first, *others = beside
    main = next(iter(terms.values()))
    terms["gradients of activations"] = (
        max(first, *(each - main for each in others)) if others else first
    )
    if (
        more := scoring - sum(terms.values())
    ) > 0:  # plain modules take the scores, and nothing else is kept then
        terms["more while scores are taken"] = more
    terms["workspaces"] = 2 * WORKSPACE  # passes have a stream of their own
    return terms


def kept_by_kernel_encoder(shape: EncoderShape) -> float:
    """Bytes per token: a block's input, its queries, keys and values, what they mix, both branches
    before their norm, what lies between, and both sides of the gelu.
    """
    block = LOW * (8 * shape.width + 2 * shape.feedforward) + FLOAT * shape.heads
    projected = shape.embedding if shape.has_projection else 0
    return shape.layers * block + LOW * (shape.width + projected)
