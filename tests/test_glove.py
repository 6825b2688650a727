"""GloVe's word vectors: read from its text format, copied into a decoder, and kept with the model."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest
import torch
from decoder_cases import FEATURES, LENGTH, VARIANTS, close, photos, words

from sightline.errors import ConfigError
from sightline.nn.decoders import DECODERS, build_decoder, build_embedding
from sightline.nn.decoders.base import read_glove

GLOVE = "the 0.1 0.2 0.3\ndog 1 2 3\nat name@domain.com 7 7 7\ncat -1 -2e-1 -3\n"


@pytest.fixture(params=["glove.txt", "glove.txt.gz"])
def glove(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.write_bytes(gzip.compress(GLOVE.encode()) if path.suffix == ".gz" else GLOVE.encode())
    return path


def test_glove_is_read_plain_or_compressed(glove: Path) -> None:
    vectors = read_glove(glove)
    assert set(vectors) == {"the", "dog", "cat"}  # entries of several words are no word of ours
    assert close(vectors["cat"], torch.tensor([-1, -0.2, -3]))


def test_only_wanted_words_are_kept(glove: Path) -> None:
    vectors = read_glove(glove, {"cat", "at", "unheard"})
    assert "cat" in vectors
    assert "dog" not in vectors
    assert "at" not in vectors


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"the 0.1 0.2\ndog 1 x\n", "line 2: not a word and its numbers"),
        (b"the 0.1 0.2\ncat 1 2\ndog 1\n", "line 3: 1 numbers where the first line has 2"),
        (b"the 0.1 0.2\ndog 1 2 3\n", "line 2: 3 numbers where the first line has 2"),
        (b"the\n", "line 1: 0 numbers"),
        (b"", "holds no vectors"),
        (b"PK\x03\x04\xff\xfe", "cannot be read as GloVe's text format"),
    ],
)
def test_a_bad_glove_file_is_named_with_its_line(content: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_glove(path)
    assert fault in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_cut_off_or_absent_glove_file_is_one_clear_line(tmp_path: Path) -> None:
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(GLOVE.encode() * 100)[:60])
    for path, fault in ((cut, "cannot be read"), (tmp_path / "none.txt", "does not exist")):
        with pytest.raises(ConfigError, match=fault):
            read_glove(path)
    with pytest.raises(ConfigError, match=r"needs a file: --set embedding\.file="):
        build_embedding("glove", ["dog"], 8, None, False)
    with pytest.raises(ConfigError, match=r"embedding\.dimension=100"):
        build_embedding("glove", ["dog"], 8, "glove.txt", False, 100)
    assert build_embedding("learned", ["dog", "cat"], 8, None, False, 5).vectors.weight.shape == (2, 5)


def test_glove_vectors_are_copied_and_their_coverage_logged(glove: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        embedding = build_embedding("glove", ["<pad>", "dog", "unheard", "cat"], 8, str(glove), frozen=True)
    assert close(embedding.vectors.weight[1], torch.tensor([1.0, 2.0, 3.0]))
    assert close(embedding.vectors.weight[3], torch.tensor([-1, -0.2, -3]))
    assert "50.0 % of 4 words" in caplog.text
    assert not embedding.vectors.weight.requires_grad
    assert embedding(torch.tensor([[1, 3]])).shape == (1, 2, 8)
    assert build_embedding("glove", ["dog"], 8, str(glove), frozen=False).vectors.weight.requires_grad


@pytest.mark.parametrize("name", DECODERS)
def test_glove_vectors_travel_with_the_model_and_the_file_is_not_needed_again(name: str, glove: Path) -> None:
    torch.manual_seed(0)
    tokens = ["<pad>", "<start>", "<end>", "<unknown>", "the", "dog", "cat"]
    embedding = build_embedding("glove", tokens, 8, str(glove), frozen=False)
    options = VARIANTS[name] | {"embedding": embedding}
    decoder = build_decoder(features=FEATURES, vocabulary=7, max_length=LENGTH, **options).eval()
    glove.unlink()
    again = build_decoder(**decoder.spec)
    again.load_state_dict(decoder.state_dict())
    features, captions = photos(2), words(2) % 7
    with torch.no_grad():
        assert torch.equal(again.eval()(features, captions).logits, decoder(features, captions).logits)
    assert close(again.embedding.vectors.weight[5], torch.tensor([1.0, 2.0, 3.0]))
