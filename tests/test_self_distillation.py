"""Self-distillation: what it corrects of a captioner's next words, on a vocabulary and captions made by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_objectives import Tiny, batch_of, some_features

from sightline.errors import ConfigError
from sightline.tokenizers import TOKENIZERS
from sightline.training.objectives import self_distillation
from sightline.training.objectives.self_distillation import Corrections, SelfDistillation, missed_words

CAPTIONS = ["a red dog in the sun", "an orange in a red bowl", "a red orange", "an orange dog"]


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(self_distillation, "EXPECTED", 0.2)
    return TOKENIZERS["word"].train(CAPTIONS, min_count=1, max_length=12)


@pytest.fixture
def corrected(tokenizer):
    return corrected_by(tokenizer)


def corrected_by(tokenizer):
    shift = torch.zeros(tokenizer.size)
    shift[tokenizer.ids["bowl"]] = 1.0
    correct = Corrections(tokenizer, [CAPTIONS], shift)

    def next_words(text: str, strength: float = 0.0, **logits: float) -> list[dict[str, float]]:
        """The probabilities of what follows the start and each word of ``text``; uniform but for ``logits``."""
        tokens = torch.tensor([tokenizer.encode(text)[:-1]])
        given = torch.zeros(1, tokens.shape[1], tokenizer.size)
        for word, value in logits.items():
            given[..., tokenizer.ids[word]] = value
        found = correct(given, tokens, torch.tensor([strength]))[0]
        assert found.sum(-1).tolist() == pytest.approx([1.0] * tokens.shape[1])
        return [dict(zip(tokenizer.tokens, row.tolist())) for row in found]

    return next_words


def test_words_that_people_never_write_one_after_another_do_not_follow(corrected) -> None:
    assert corrected("a dog in a")[-1]["<end>"] == 0
    assert corrected("a dog in a")[-1]["a"] == 0
    assert corrected("a dog")[-1]["<end>"] > 0, "dogs end captions"
    assert corrected("a dog in the")[-1]["bowl"] > 0, "too rare to know"


def test_a_content_word_is_not_said_again_within_three_words(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_distillation, "EXPECTED", 1e9)  # so that no pair of words is forbidden
    corrected = corrected_by(tokenizer)
    assert corrected("a red")[-1]["red"] == 0
    assert corrected("a red dog in")[-1]["red"] == 0
    assert corrected("a red dog in the")[-1]["red"] > 0
    assert corrected("the dog in")[-1]["the"] > 0, "function words may be"


def test_articles_agree_and_keep_the_probability_of_what_follows(corrected) -> None:
    """'orange' follows 'an' more often than 'a', 'red' only 'a'."""
    plain, wrong = corrected("the dog", orange=1.0)[0], corrected("a orange", orange=1.0)
    assert wrong[1]["orange"] == 0 and wrong[1]["red"] > 0
    moved = wrong[0]["an"] - plain["an"]
    assert moved > 0.01
    assert wrong[0]["a"] == pytest.approx(plain["a"] - moved)
    assert corrected("an")[-1]["red"] == 0


def test_missed_words_are_favoured_by_the_strength_of_the_photo(corrected) -> None:
    assert corrected("a", strength=0.0)[-1]["bowl"] == pytest.approx(corrected("a")[-1]["sun"])
    favoured = corrected("a", strength=2.0)[-1]
    assert favoured["bowl"] / favoured["sun"] == pytest.approx(torch.tensor(2.0).exp().item(), rel=1e-5)


@pytest.fixture
def trained(tokenizer):
    """A model of these words, and what the training loop gives an objective: two photos of two sources."""
    model = Tiny("transformer", tokenizer.size, max_length=12, width=8, heads=2, blocks=1)
    batch = batch_of([tokenizer.encode(text) + [0] * (7 - len(text.split())) for text in CAPTIONS[:2]], photos=2)
    loader = SimpleNamespace(epoch=lambda number: iter([batch]), batch_size=2)
    context = SimpleNamespace(
        tokenizer=tokenizer, train=loader, references=[CAPTIONS[:2], CAPTIONS[2:]], sources=["zoo", "home"]
    )
    return model, context, batch


def test_words_the_model_never_expects_are_missed(trained, tokenizer) -> None:
    model, _, batch = trained
    with torch.no_grad():
        model.decoder.output.bias[tokenizer.ids["dog"]] -= 20
    found = missed_words(model, tokenizer, [(some_features(2), batch.tokens)])
    assert found[tokenizer.ids["dog"]] > found[tokenizer.ids["bowl"]]
    assert found[tokenizer.ids["the"]] == 0, "a function word is never missed"


def test_training_approaches_the_corrected_distributions(trained) -> None:
    model, context, batch = trained
    objective = SelfDistillation(pad=0, missed_words=1.0)
    objective.prepare(model, context)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(40):
        loss, logs = objective(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(logs["divergence"].item())
    assert losses[-1] < losses[0] / 2
    assert min(losses) > 0


def test_a_model_that_needs_no_correction_has_nothing_to_learn(trained, monkeypatch) -> None:
    model, context, batch = trained
    objective = SelfDistillation(pad=0)
    objective.prepare(model, context)
    monkeypatch.setattr(Corrections, "forward", lambda self, logits, tokens, strengths: logits.softmax(-1))
    assert objective(model, batch)[0].item() == pytest.approx(0, abs=1e-6)


def test_words_may_be_favoured_in_one_source_alone(trained) -> None:
    model, context, _ = trained
    objective = SelfDistillation(pad=0, missed_words={"home": 2.0})
    objective.prepare(model, context)
    assert objective.strengths.tolist() == [0, 2]
    with pytest.raises(ConfigError, match=r"objective\.missed_words names 'hom' \(did you mean 'home'\?\)"):
        SelfDistillation(pad=0, missed_words={"hom": 2.0}).prepare(model, context)
