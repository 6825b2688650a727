"""Sampling: frequencies, top-k and top-p, temperature, seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_decoders import END, PAD, START, Chain, ToyDecoder, decode, photos, sample, texts

from sightline.decoding import DecodingOptions
from sightline.decoding.sampling import _inverse_cdf, sampling_weights


def test_samples_are_laid_out_as_encoded_captions_and_may_be_trained_on():
    decoder = ToyDecoder(sharpness=1.0)
    options = DecodingOptions(sample=True, max_length=6)
    tokens = sample(decoder, photos(5), 4, options, torch.Generator().manual_seed(0))
    assert tokens.shape[0] == 20
    assert tokens.shape[1] <= 6
    for row in tokens.tolist():
        assert row[0] == START
        body = row[1:]
        if END in body:
            end = body.index(END)
            assert min([4, *body[:end]]) >= 4
            assert set(body[end + 1 :]) <= {PAD}
        else:
            assert min(body) >= 4
            assert len(row) == 6
    decoder.embedding(tokens).sum().backward()


def test_sampling_frequencies_match_probabilities():
    table = torch.tensor([0.0, 0.0, 0.5, 0.0, 1.0, 2.0, -1.0]).repeat(7, 1)
    options = DecodingOptions(sample=True, max_length=3)
    tokens = sample(Chain(table), photos(100), 200, options, torch.Generator().manual_seed(0))
    expected = table[0, [END, 4, 5, 6]].softmax(0)  # what is left once pad, start and unknown are out
    first = torch.bincount(tokens[:, 1], minlength=7)[[END, 4, 5, 6]] / len(tokens)
    torch.testing.assert_close(first, expected, atol=0.015, rtol=0)
    going_on = tokens[tokens[:, 1] != END]
    second = torch.bincount(going_on[:, 2], minlength=7)[[END, 4, 5, 6]] / len(going_on)
    torch.testing.assert_close(second, expected, atol=0.015, rtol=0)


def test_top_k_and_top_p_leave_the_right_tokens():
    log_probs = np.log([[0.1, 0.4, 0.3, 0.15, 0.05]])
    kept = {
        ("top_k", 2): [1, 2],
        ("top_p", 0.65): [1, 2],
        ("top_p", 0.75): [1, 2, 3],
        ("top_p", 1e-6): [1],
        ("top_p", 5e-324): [1],
        ("top_k", 9): [0, 1, 2, 3, 4],
    }
    for (name, value), tokens in kept.items():
        weights = sampling_weights(log_probs, DecodingOptions(sample=True, **{name: value}))
        assert weights[0].nonzero()[0].tolist() == tokens
        ratio = weights[0, tokens] / np.exp(log_probs)[0, tokens]
        assert ratio == pytest.approx(ratio[0])
    both = sampling_weights(log_probs, DecodingOptions(sample=True, top_k=3, top_p=0.5))
    assert both[0].nonzero()[0].tolist() == [1, 2]


def test_low_temperature_draws_the_greedy_caption():
    decoder, features = ToyDecoder(), photos(10)
    sampled_captions = decode(decoder, features, DecodingOptions(sample=True, temperature=1e-4, max_length=8))
    assert texts(sampled_captions) == texts(decode(decoder, features, DecodingOptions(beam=1, max_length=8)))


def test_seeds_reproduce_and_differ():
    decoder, features = ToyDecoder(sharpness=1.0), photos(10)
    options = DecodingOptions(sample=True, candidates=3)
    assert texts(decode(decoder, features, options)) == texts(decode(decoder, features, options))
    assert texts(decode(decoder, features, options)) != texts(decode(decoder, features, replace(options, seed=1)))
    one, again, other = (sample(decoder, features, 3, options, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_a_token_of_no_weight_is_never_sampled():
    weights = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert _inverse_cdf(weights, np.array([[0.0, 0.25, 0.5, 0.75, 1 - 1e-12]])).tolist() == [[1, 1, 3, 3, 3]]
