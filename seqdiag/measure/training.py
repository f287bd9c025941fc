"""A few optimiser steps without warm-up, to see what a layout of norms does to the gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqdiag.measure.probes import Run


def train_to_copy(module: nn.Module, run: Run, x: Tensor, steps: int, lr: float) -> None:
    """Takes `steps` steps of Adam on one fixed sequence: output t is to be input t - 1.

    The sequence is the first of x. Mean squared error over its steps and the features that input
    and output share; no warm-up, which is where a post-norm transformer fails. The module is
    trained in place, in its own mode.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters or steps == 0:
        return
    optimiser = torch.optim.Adam(parameters, lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            out = run(x).flatten(2)
            width = min(out.shape[-1], x.shape[-1])
            loss = (out[:1, 1:, :width] - x[:1, :-1, :width]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    optimiser.zero_grad()
