"""Gradients of fused blocks that do not wait for autograd: those of many blocks in one launch.

A block has the gradients of its biases and norms as partial sums of several programs. Autograd
would want them added up before it goes on to the next block, in a launch of a few microseconds that
leaves most of a GPU idle. While `LowPrecisionCopies.defer_gradients` is in force, blocks give their
partial sums to `DeferredGradients` and return None to autograd instead.

The gradient of a matrix is a product, which can be written to where the optimizer will read it.
Through autograd it would be written elsewhere, and copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from electra.kernels import column_sums
from electra.kernels.column_sums import reduce_to_flat

MAX_BYTES = 64 * 2**20  # of partial sums of the same shapes that wait


class PartialSums(NamedTuple):
    """Partial sums [programs, …] whose totals, side by side, are the gradients of `parameters`."""

    partials: list[Tensor]
    parameters: list[Tensor]


class DeferredGradients:
    """The gradients of one backward pass that autograd does not see.

    Blocks are added up together if their partial sums have the same shapes, so that no sum depends
    on what else is in the launch. `targets` are pairs of a parameter and where its gradient goes.
    """

    def __init__(self, targets: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        self.targets = dict(targets)  # by parameter, until they are written
        self.waiting: dict[tuple[torch.Size, ...], PartialSums] = {}
        self.gradients: dict[Tensor, Tensor] = {}  # by parameter

    def add_sums(self, partials: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Take the partial sums of one block; add up those that wait if they are many or large."""
        shapes = tuple(partial.shape for partial in partials)
        waiting = self.waiting.setdefault(shapes, PartialSums([], []))
        waiting.partials.extend(partials)
        waiting.parameters.extend(parameters)
        is_full = len(waiting.partials) + len(partials) > column_sums.MAX_TENSORS
        if is_full or sum(partial.nbytes for partial in waiting.partials) > MAX_BYTES:
            self.reduce(self.waiting.pop(shapes))

    def take_target(self, parameter: Tensor) -> Tensor | None:
        """Return where the caller must write the gradient of a parameter. The second time it is
        None: what is there already must not be overwritten.
        """
        target = self.targets.pop(parameter, None)
        if target is not None:
            self.gradients[parameter] = target
        return target

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
