"""Gradients of fused blocks that do not wait for autograd: those of many blocks in one launch.

A block has the gradients of its biases and norms as partial sums of several programs. Autograd
would want them added up before it goes on to the next block, in a launch of a few microseconds that
leaves most of a GPU idle. While `LowPrecisionCopies.defer_gradients` is in force, blocks give their
partial sums to `DeferredGradients` and return None to autograd instead.

The gradient of a matrix is a product, which can be written to where the optimizer will read it, and
while the backward pass goes on. Through autograd it would be written elsewhere, and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.kernels import column_sums
from electra.kernels.column_sums import reduce_to_flat
from electra.kernels.streams import ProductStream

MAX_BYTES = 64 * 2**20  # of partial sums of the same shapes that wait


class PartialSums(NamedTuple):
    """Partial sums [programs, …] whose totals, side by side, are the gradients of `parameters`."""

    partials: list[Tensor]
    parameters: list[Tensor]


class DeferredGradients:
    """The gradients of one backward pass that autograd does not see.

    Blocks are added up together if their partial sums have the same shapes, so that no sum depends
    on what else is in the launch. `targets` are pairs of a parameter and where its gradient goes;
    `product_stream` computes those.
    """

    def __init__(
        self,
        targets: Iterable[tuple[Tensor, Tensor]] = (),
        product_stream: ProductStream | None = None,
    ) -> None:
        self.targets = dict(targets)  # by parameter, until they are written
        self.product_stream = product_stream
        self.waiting: dict[Any, PartialSums] = {}  # by their stream and shapes
        self.gradients: dict[Tensor, Tensor] = {}  # by parameter

    def add_sums(self, partials: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Take the partial sums of one block; add up those that wait if they are many or large."""
        key = (current_stream(partials[0]), *(partial.shape for partial in partials))
        waiting = self.waiting.setdefault(key, PartialSums([], []))
        waiting.partials.extend(partials)
        waiting.parameters.extend(parameters)
        is_full = len(waiting.partials) + len(partials) > column_sums.MAX_TENSORS
        if is_full or sum(partial.nbytes for partial in waiting.partials) > MAX_BYTES:
            self.reduce(self.waiting.pop(key))

    def take_target(self, parameter: Tensor) -> Tensor | None:
        """Return where the caller must write the gradient of a parameter. The second time it is
        None: what is there already must not be overwritten.
        """
        target = self.targets.pop(parameter, None)
        if target is not None:
            self.gradients[parameter] = target
        return target

    def run_product(self, product: Callable[[], object], *inputs: Tensor) -> None:
        """Run a product that writes to its target. Nobody may overwrite what it reads before
        `merge_into`.
        """
        if self.product_stream is None:
            product()
        else:
            self.product_stream.run(product, *inputs)

    def reduce(self, sums: PartialSums) -> None:
        """Add up partial sums, and add the gradients to those that a parameter has already."""
        for parameter, gradient in zip(sums.parameters, split_sums(*sums), strict=True):
            if parameter in self.gradients:  # a network was called twice
                self.gradients[parameter].add_(gradient)
            else:
                self.gradients[parameter] = gradient

    def merge_into(
        self, parameters: Iterable[Tensor], gradients: Iterable[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of `parameters`: those that autograd found and those that wait.

        One that is complete in its target is that tensor itself.
        """
        if self.product_stream is not None:
            self.product_stream.join()
        while self.waiting:
            self.reduce(self.waiting.popitem()[1])
        merged = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            deferred = self.gradients.get(parameter)
            if gradient is not None and deferred is not None:  # used outside of blocks too
                deferred.add_(gradient)
            elif deferred is None:
                deferred = gradient
            merged.append(deferred)
        return merged


def current_stream(tensor: Tensor) -> Any:
    """Return the CUDA stream that operations on a tensor run on now; None where it has none."""
    if tensor.is_cuda:
        return torch.cuda.current_stream(tensor.device)
    return None


def sum_gradients(
    partials: Sequence[Tensor], parameters: Sequence[Tensor], deferred: DeferredGradients | None
) -> list[Tensor | None]:
    """Return the gradients of `parameters`, whose partial sums stand side by side in `partials`.

    None stands for each if they are deferred.
    """
    if deferred is None:
        return [*split_sums(partials, parameters)]
    deferred.add_sums(partials, parameters)
    return [None] * len(parameters)


def split_sums(partials: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Add up `partials` and cut the sums into the gradients of `parameters`."""
    flat = reduce_to_flat(partials).split([parameter.numel() for parameter in parameters])
    pairs = zip(flat, parameters, strict=True)
    return [gradient.view(parameter.shape) for gradient, parameter in pairs]
