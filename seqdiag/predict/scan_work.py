"""The work of a scan in closed form: operations, exponentials, bytes.

An operation is one addition or multiplication; an exponential is counted apart. Sizes: B batch,
T steps, D channels, N states a channel, H heads of P = D / H channels, Q steps in a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lti", "selective", "ssd", "linear-rnn"]

_FFT = 2.5
"""Operations of a real FFT of M points, over M log2 M: half of the complex 5 M log2 M."""


@dataclass(frozen=True, slots=True)
class ScanShape:
    """One scan by its sizes; ssd has one group of B and C."""

    kind: Kind
    batch: int
    steps: int
    width: int
    d_state: int
    heads: int

    @property
    def cells(self) -> int:
        """State updates: B T D N."""
        n = 1 if self.kind == "linear-rnn" else self.d_state
        return self.batch * self.steps * self.width * n

    @property
    def exps(self) -> int:
        """Exponentials: one a state update where the decay depends on the input."""
        if self.kind == "selective":
            return self.cells
        return self.batch * self.steps * self.heads if self.kind == "ssd" else 0

    @property
    def min_flops(self) -> int:
        """Operations of the recurrence itself, which no form can do with fewer multiplications.

        A state update is a h + w (2) and the readout C h (2); the write w = B u (1), and for the
        selective scan the exponent delta A (1). Products once a channel or head are added.
        """
        channels = self.batch * self.steps * self.width
        if self.kind == "linear-rnn":
            return 2 * channels
        if self.kind == "lti":
            return 5 * self.cells
        if self.kind == "selective":
            return 6 * self.cells + channels
        return 5 * self.cells + channels + self.batch * self.steps * self.heads

    @property
    def state_numbers(self) -> int:
        return self.cells // self.steps

    def flops(self, form: str, chunk: int | None = None) -> int | None:
        """Returns the operations of a form, or None where they are not known.

        `form` is loop, chunked, associative or fft; the dual form is the chunked one of ssd.
        """
        if form == "loop":
            return self.min_flops
        if form == "associative" and self.kind != "ssd":
            return self.min_flops + self._prefix(self.steps) * (self.cells // self.steps)
        if form == "fft" and self.kind in ("lti", "linear-rnn"):
            return self._by_fft()
        if form == "chunked" and self.kind == "selective":
            return self.min_flops
        if form == "chunked" and chunk is not None:
            return self._by_chunks(min(chunk, self.steps))
        return None

    def _by_chunks(self, q: int) -> int:
        chunks = -(-self.steps // q)
        rows = self.batch * self.steps
        if self.kind == "linear-rnn":
            return 2 * rows * self.width + chunks * self._prefix(q) * (self.cells // self.steps)
        if self.kind == "lti":  # a Toeplitz product, chunk ends, carries, readout
            carries = 2 * self.batch * chunks * self.width * self.d_state
            return 2 * rows * self.width * (q + 2 * self.d_state) + carries
        # Scores of a group, masked and applied for each head; then the state, written and read.
        scores = 2 * rows * q * self.d_state
        applied = 2 * rows * q * (self.heads + self.width)
        return scores + applied + 4 * rows * self.width * self.d_state

    @staticmethod
    def _prefix(steps: int) -> int:
        """Returns the operations of a parallel prefix over one number a step: log2(T) rounds.

        A round composes each step with the one `span` before it: a b' + b, a a'.
        """
        return sum(3 * (steps - (1 << k)) for k in range((steps - 1).bit_length()))

    def _by_fft(self) -> int:
        """Three real transforms of 2 T points, their product, and the kernel."""
        points = 2 * self.steps
        one = _FFT * points * math.log2(points)
        sequences = self.batch * self.width
        kernel = 2 * self.steps * self.width * self.d_state if self.kind == "lti" else 0
        return round(one * (2 * sequences + self.width) + 6 * sequences * (self.steps + 1)) + kernel

    def min_bytes(self, itemsize: int) -> int:
        """Returns the bytes of operands and results if each crosses memory once."""
        rows = self.batch * self.steps
        if self.kind == "linear-rnn":
            numbers = 3 * rows * self.width
        elif self.kind == "lti":
            numbers = 2 * rows * self.width
        elif self.kind == "selective":
            numbers = rows * (3 * self.width + 2 * self.d_state)
        else:
            numbers = rows * (2 * self.width + self.heads + 2 * self.d_state)
        return numbers * itemsize

    def materialised_bytes(self, form: str, itemsize: int) -> int:
        """Returns about what a form holds at once beyond its operands, to refuse it in time.

        The textbook loop and the parallel prefix hold decays and writes of every step.
        """
        if form in ("loop", "associative", "mambapy") and self.kind != "ssd":
            return {"loop": 2, "associative": 6, "mambapy": 5}[form] * self.cells * itemsize
        if form == "fft":
            return 8 * self.batch * self.steps * self.width * itemsize
        return 2 * self.min_bytes(itemsize)
