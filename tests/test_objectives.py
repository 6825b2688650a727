"""Cross-entropy, its penalties, and distillation, against losses computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_objectives import DEPTH, Tiny, batch_of, some_features
from torch import nn

from sightline.data.loader import Batch
from sightline.errors import ConfigError
from sightline.training.objectives import OBJECTIVES, distillation
from sightline.training.objectives.base import CrossEntropy, doubly_stochastic
from sightline.training.objectives.distillation import Distillation
from sightline.training.objectives.hard_attention import HardAttention
from sightline.types import ImageFeatures


def test_every_objective_is_listed_by_its_recipe_name():
    assert set(OBJECTIVES) == {"cross-entropy", "hard-attention", "self-critical", "distillation", "self-distillation"}


# -- cross-entropy ----------------------------------------------------------------------------------------------------


def test_cross_entropy_ignores_padding_and_counts_every_word_once():
    model = Tiny("transformer", 8, width=8, heads=2, blocks=1)
    whole = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]])
    loss, _ = CrossEntropy(pad=0)(model, whole)
    apart = [CrossEntropy(pad=0)(model, batch_of([row]))[0] * n for row, n in (([1, 5, 6, 2], 3), ([1, 7, 2], 2))]
    torch.testing.assert_close(loss, sum(apart) / 5)


def test_label_smoothing_mixes_in_the_uniform_distribution():
    model = Tiny("transformer", 8, width=8, heads=2, blocks=1)
    batch = batch_of([[1, 5, 6, 2]])
    log_probs = model(batch.photos, batch.tokens[:, :-1]).logits.log_softmax(-1)
    expected = -(0.9 * log_probs[0, [0, 1, 2], [5, 6, 2]] + 0.1 * log_probs[0].mean(-1)).mean()
    torch.testing.assert_close(CrossEntropy(pad=0, label_smoothing=0.1)(model, batch)[0], expected)


def test_the_doubly_stochastic_penalty_is_zero_only_when_attention_to_every_cell_sums_to_one():
    even = torch.full((1, 3, 3), 1 / 3)
    words = torch.ones(1, 3, dtype=torch.bool)
    assert doubly_stochastic(even, words).item() == pytest.approx(0)
    stuck = torch.tensor([[[1.0, 0, 0]] * 3])
    assert doubly_stochastic(stuck, words).item() == pytest.approx((1 - 3) ** 2 + 1 + 1)


def test_tau_is_what_attention_to_every_cell_should_sum_to():
    even = torch.full((1, 6, 3), 1 / 3)
    words = torch.ones(1, 6, dtype=torch.bool)
    assert doubly_stochastic(even, words, tau=2.0).item() == pytest.approx(0, abs=1e-9)
    assert doubly_stochastic(even, words, tau=1.0).item() == pytest.approx(3)
    model = Tiny("attention-lstm", 8, width=8, hidden=8, attention=4)
    batch = batch_of([[1, 5, 6, 2]])
    attention = model(batch.photos, batch.tokens[:, :-1]).attention
    for objective in (CrossEntropy, HardAttention):
        plain, penalised = (
            objective(pad=0, doubly_stochastic=weight, tau=2.5).double()(model, batch)[0] for weight in (0.0, 1.0)
        )
        expected = (2.5 - attention.sum(1)).square().sum() / 3
        torch.testing.assert_close(penalised - plain, expected)


@pytest.mark.parametrize("objective", [CrossEntropy, HardAttention])
def test_a_tau_below_what_the_paper_allows_is_warned_of(objective, caplog):
    model = Tiny("attention-lstm", 8, width=8, hidden=8, attention=4, mode="hard")
    model.encoder = SimpleNamespace(dimension=512, height=14, width=14)  # L / D = 0.38
    for tau in (0.4, 1.0):
        objective(pad=0, doubly_stochastic=1.0, tau=tau).prepare(model, None)
    objective(pad=0, doubly_stochastic=0.0, tau=0.1).prepare(model, None)
    assert not caplog.records
    objective(pad=0, doubly_stochastic=1.0, tau=0.3).prepare(model, None)
    assert "objective.tau=0.3 is below L / D = 14 x 14 / 512 = 0.38" in caplog.text


def test_the_doubly_stochastic_penalty_needs_attention():
    with pytest.raises(ConfigError, match="doubly_stochastic"):
        CrossEntropy(pad=0, doubly_stochastic=1.0)(Tiny("lstm", 8, width=8, hidden=8).eval(), batch_of([[1, 5, 2]]))


# -- distillation -----------------------------------------------------------------------------------------------------


def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    objective = Distillation(0, teacher, DEPTH, teacher_weight=1.0)
    batch = batch_of([[1, 5, 6, 2]])
    loss, _ = objective(student, Batch(**{**batch.__dict__, "teacher": batch.photos}))
    assert loss.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_is_the_divergence_from_the_teacher_to_the_student(temperature):
    """KL(teacher || student) = sum p_t (log p_t - log p_s), Hinton et al.'s: the student must cover what the teacher
    says. The other direction has another value, and lets a student ignore all but one of the teacher's words."""
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.7)
    batch = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]], photos=2)
    batch = Batch(**{**batch.__dict__, "teacher": some_features(2)})
    loss, logs = Distillation(0, teacher, DEPTH, temperature=temperature, teacher_weight=1.0)(student, batch)
    inputs, real = batch.tokens[:, :-1], batch.tokens[:, 1:] != 0
    p_student, p_teacher = (
        (model(batch.photos, inputs).logits[real] / temperature).softmax(-1).detach() for model in (student, teacher)
    )
    forward, reverse = (
        (p * (p / q).log()).sum().item() / int(real.sum()) * temperature**2
        for p, q in ((p_teacher, p_student), (p_student, p_teacher))
    )
    assert loss.item() == logs["divergence"].item() == pytest.approx(forward, rel=1e-9)
    assert abs(forward - reverse) > 0.05 * forward, "the directions must differ for this to be a test"


def test_the_teacher_is_moved_to_the_batch_s_device():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    moved = []
    teacher.to = lambda device: moved.append(device) or teacher
    batch = batch_of([[1, 5, 6, 2]])
    Distillation(0, teacher, DEPTH)(student, Batch(**{**batch.__dict__, "teacher": batch.photos}))
    assert moved == [batch.tokens.device]


def test_a_student_comes_to_agree_with_its_teacher_in_words_and_features():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.5)
    student.projection = nn.Linear(DEPTH, DEPTH).double()
    student.features = lambda photos: ImageFeatures(
        student.projection(photos.grid), student.projection(photos.pooled), photos.height, photos.width
    ) if photos is batch.photos else photos  # fmt: skip
    batch = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]], photos=2)
    batch = Batch(**{**batch.__dict__, "teacher": some_features(2)})
    objective = Distillation(0, teacher, DEPTH, teacher_weight=1.0, feature_weight=1.0).double()
    optimizer = torch.optim.Adam([*student.parameters(), *objective.parameters()], 0.02)
    losses = []
    for _ in range(60):
        loss, logs = objective(student, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((float(logs["divergence"]), float(logs["features"])))
    assert losses[-1][0] < losses[0][0] / 5
    assert losses[-1][1] < losses[0][1] / 5


def test_the_feature_loss_compares_what_both_decoders_read_of_each_cell():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    nn.init.normal_(teacher.decoder.photo.weight)
    objective = Distillation(0, teacher, DEPTH, feature_weight=1.0, init_from_teacher=True)
    features = some_features(2)
    cells = [*features.grid.flatten(0, 1), *features.pooled]
    pairs = [(student.decoder.photo(cell), teacher.decoder.photo(cell)) for cell in cells]
    cosines = [(one @ other / one.norm() / other.norm()).item() for one, other in pairs]
    distance = objective._distance(student, features, features).item()
    assert distance == pytest.approx(1 - sum(cosines) / len(cosines))


def test_the_map_to_the_teachers_features_is_fitted_to_so_many_photos_and_no_more(monkeypatch):
    monkeypatch.setattr(distillation, "FITTED_PHOTOS", 4)
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    batch = batch_of([[1, 5, 2]])
    batches = iter([Batch(**{**batch.__dict__, "teacher": batch.photos})] * 6)
    distillation.init_decoder(student, teacher, batches)
    assert len(list(batches)) == 2
