"""What self-distillation corrects of a captioner's next words, on a vocabulary and captions made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import self_distillation
from sightline.data import Example
from sightline.nn.checkpoint import load_checkpoint
from sightline.tokenizers import TOKENIZERS

CAPTIONS = ["a red dog in the sun", "an orange in a red bowl", "a red orange", "an orange dog"]


@pytest.fixture
def corrected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(self_distillation, "FREQUENT", 1)
    tokenizer = TOKENIZERS["word"].train(CAPTIONS, min_count=1, max_length=12)
    shift = torch.zeros(tokenizer.size)
    shift[tokenizer.ids["bowl"]] = 1.0
    correct = self_distillation.corrections(tokenizer, [Example(Path("x"), tuple(CAPTIONS), "x")], shift)

    def next_words(text: str, strength: float = 0.0, **logits: float) -> dict[str, float]:
        """The probabilities of the word after each word of ``text``, the last one's; uniform but for ``logits``."""
        tokens = torch.tensor([tokenizer.encode(text)[:-1]])
        given = torch.zeros(1, tokens.shape[1], tokenizer.size)
        for word, value in logits.items():
            given[..., tokenizer.ids[word]] = value
        found = correct(given, tokens, torch.tensor([strength]))[0]
        assert found.sum(-1).tolist() == pytest.approx([1.0] * tokens.shape[1])
        return [dict(zip(tokenizer.tokens, row.tolist())) for row in found]

    return next_words


def test_no_caption_ends_after_a_word_that_ends_none(corrected) -> None:
    assert corrected("a dog in the")[-1]["<end>"] == 0
    assert corrected("a dog")[-1]["<end>"] > 0, "dogs end captions"


def test_a_content_word_is_not_repeated_within_three_words(corrected) -> None:
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


def test_words_are_favoured_by_the_strength_of_the_photo(corrected) -> None:
    assert corrected("a", strength=0.0)[-1]["bowl"] == pytest.approx(corrected("a")[-1]["dog"])
    favoured = corrected("a", strength=2.0)[-1]
    assert favoured["bowl"] / favoured["dog"] == pytest.approx(torch.tensor(2.0).exp().item(), rel=1e-5)


def test_only_the_decoder_changes_and_the_model_is_complete(
    finished_run: Path, tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    arguments = [str(finished_run), str(tmp_path / "new"), "--data", str(tiny_flickr8k_kept), "--steps", "2"]
    self_distillation.main([*arguments, "--batch-size", "4", "--precision", "float32"])
    before, after = load_checkpoint(finished_run).model, load_checkpoint(tmp_path / "new").model
    for (name, old), new in zip(before.named_parameters(), after.parameters()):
        if name.startswith("encoder."):
            assert torch.equal(old, new)
    assert any(not torch.equal(old, new) for old, new in zip(before.decoder.parameters(), after.decoder.parameters()))
