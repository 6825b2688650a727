"""How many words a captioner uses: rare or underused content words are favoured, function words are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import word_use
from sightline.data import Dataset, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.evaluation.calibration import FUNCTION_WORDS
from sightline.nn.checkpoint import load_checkpoint


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


def _content_words(captioner: Captioner, dataset: Dataset) -> list[str]:
    """Rarest first."""
    texts = " ".join(text for example in dataset.examples("train") for text in example.captions).lower().split()
    words = captioner.tokenizer.tokens
    return sorted((word for word in words if word.isalpha() and word not in FUNCTION_WORDS), key=texts.count)


def test_rare_content_words_are_favoured(finished_run: Path, tiny_flickr8k_kept: Path) -> None:
    captioner, dataset = load(finished_run, runtime="torch"), load_dataset(tiny_flickr8k_kept)
    shift = word_use.frequency_shift(captioner, [dataset])
    words, content = captioner.tokenizer.tokens, _content_words(captioner, dataset)
    assert shift[words.index(content[0])] > shift[words.index(content[-1])]
    assert all(shift[index] == 0 for index, word in enumerate(words) if word in FUNCTION_WORDS or not word.isalpha())


def test_a_word_the_model_never_expects_is_favoured(finished_run: Path, tiny_flickr8k_kept: Path, cache: None) -> None:
    captioner, dataset = load(finished_run, runtime="torch"), load_dataset(tiny_flickr8k_kept)
    model = captioner.backends[0].model
    word = captioner.tokenizer.encode(_content_words(captioner, dataset)[-1])[1]
    before = word_use.match_shift(captioner.tokenizer, model, [dataset.examples("train")])
    with torch.no_grad():
        model.decoder.output.bias[word] -= 20
    after = word_use.match_shift(captioner.tokenizer, model, [dataset.examples("train")])
    assert after[word] > before[word]


def test_weights_lie_between_both_models(finished_run: Path) -> None:
    model, other = load_checkpoint(finished_run).model, load_checkpoint(finished_run).model
    with torch.no_grad():
        for values in other.parameters():
            values += 1
    before = {key: values.clone() for key, values in model.named_parameters()}
    word_use.average(model, other, 0.25)
    assert all(torch.allclose(values, before[key] + 0.25) for key, values in model.named_parameters())


def test_scores_and_words_are_printed(
    finished_run: Path, tiny_flickr8k_kept: Path, cache: None, capsys: pytest.CaptureFixture[str]
) -> None:
    average = f"{finished_run}=0.5"
    word_use.main([str(finished_run), "--data", str(tiny_flickr8k_kept), "--frequency", "0.5", "--average", average])
    line = capsys.readouterr().out
    assert "cider" in line and line.strip().endswith("words")
