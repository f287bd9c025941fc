"""The recall tasks: every question can be answered, and only from what came before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.measure.tasks import BOUND, TASKS, Problem, draw


@st.composite
def problems(draw_: st.DrawFn) -> Problem:
    task = draw_(st.sampled_from(sorted(TASKS)))
    pairs = draw_(st.integers(1, 9))
    seq_len = draw_(st.integers(4 * pairs, 4 * pairs + 30))
    vocab = draw_(st.integers(2 * pairs + 4, 60))
    return Problem(task, vocab, seq_len, pairs, task in BOUND and draw_(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1000))
def test_every_question_is_answered_earlier(problem: Problem, seed: int) -> None:
    assert problem.why_not() is None
    examples = draw(problem, 5, torch.Generator().manual_seed(seed))
    tokens, answers = examples.tokens, examples.answers
    assert tokens.shape == (5, problem.seq_len)
    assert int(tokens.min()) >= 0 and int(tokens.max()) < problem.vocab
    for row, asked, answer, needed, candidates in zip(
        tokens.tolist(),
        examples.asked_at.tolist(),
        answers.tolist(),
        examples.needed_from.tolist(),
        examples.candidates.tolist(),
        strict=True,
    ):
        assert len(set(asked)) == len(asked) == problem.pairs
        assert len(set(candidates)) == problem.pairs
        assert set(answer) == set(candidates)
        for at, value, start in zip(asked, answer, needed, strict=True):
            assert value != 0 and start < at
            if problem.task in BOUND:
                assert (row[start], row[start + 1]) == (row[at], value)
                assert row[at] < problem.vocab // 2 <= value
                assert row.count(row[at]) == 2 and row.count(value) == 1
            else:
                assert row[start] == value and row[at] == 1


def test_queries_come_early_but_reach_the_end() -> None:
    examples = draw(Problem("mqar", 256, 64, 8), 4000, torch.Generator().manual_seed(0))
    distance = examples.asked_at - (examples.needed_from + 1)
    # Share of queries whose value lies within W - 1 steps: .387 (W = 16), .756 (W = 32).
    assert float((distance <= 15).double().mean()) == pytest.approx(0.387, abs=0.02)
    assert float((distance <= 31).double().mean()) == pytest.approx(0.756, abs=0.02)
    assert int(examples.asked_at.max()) == 62


def test_triggers_stand_anywhere_before_the_questions() -> None:
    examples = draw(Problem("induction", 64, 20, 3), 4000, torch.Generator().manual_seed(0))
    assert set(examples.needed_from.flatten().tolist()) == set(range(16))
    assert set(examples.asked_at.flatten().tolist()) == {17, 18, 19}
    later = examples.needed_from[:, 0] > examples.needed_from[:, 1]
    assert float(later.double().mean()) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_an_order_of_answers_is_no_order_of_ids(task: str) -> None:
    answers = draw(Problem(task, 64, 32, 4), 3000, torch.Generator().manual_seed(1)).answers
    low = 32 if task in BOUND else 2
    counts = torch.bincount(answers.flatten(), minlength=64)[low:].double()
    assert float(counts.std() / counts.mean()) < 0.1
    assert float((answers[:, 0] < answers[:, 1]).double().mean()) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (Problem("mqar", 16, 64, 8), "--pairs: 8 is more than vocab/2 - 1 = 7"),
        (Problem("mqar", 256, 64, 17), "do not fit into --seq-len 64"),
        (Problem("induction", 256, 11, 4), "3 x 4 = 12 tokens do not fit into --seq-len 11"),
        (Problem("copy", 256, 8, 5), "do not fit into --seq-len 8"),
        (Problem("mqar", 2, 64, 1), "--vocab"),
        (Problem("copy", 64, 64, 4, random_filler=True), "--filler"),
    ],
)
def test_impossible_problems(problem: Problem, says: str) -> None:
    assert says in (problem.why_not() or "")
