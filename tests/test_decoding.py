"""Decoding against what it must equal: enumeration, plain greedy loops, one photo at a time, known probabilities."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_decoders import END, PAD, START, UNKNOWN, Chain, ToyDecoder, decode, photos, sample, sequence_log_probs, texts

from sightline import decoding
from sightline.decoding import DecodingOptions, Ensemble
from sightline.decoding.hypotheses import DecoderState, log_softmax
from sightline.engine.torch_backend import TorchDecoder
from sightline.errors import CheckpointError, ConfigError
from sightline.types import ImageFeatures

FILTERS = [
    {},
    {"min_length": 4},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2, "min_length": 5},
    {"allow_unknown": True, "length_penalty": 0.0},
]


@torch.no_grad()
def greedy(decoder, features: ImageFeatures, options: DecodingOptions) -> tuple[list[int], bool]:
    """Written apart from the library, one photo, one token at a time."""
    state, tokens, previous = decoder.start(features), [], START
    for _ in range(options.max_length - 1):
        logits, state, _ = decoder.step(torch.tensor([previous]), state)
        scores = logits[0].clone()
        scores[[PAD, START]] = -torch.inf
        if not options.allow_unknown:
            scores[UNKNOWN] = -torch.inf
        if len(tokens) < options.min_length:
            scores[END] = -torch.inf
        size = options.no_repeat_ngram
        if size:
            runs = [tokens[at : at + size] for at in range(len(tokens) - size + 1)]
            for token in range(4, len(scores)):
                if [*tokens[len(tokens) - size + 1 :], token] in runs:
                    scores[token] = -torch.inf
        previous = END if scores.max() == -torch.inf else int(scores.argmax())
        if previous == END:
            return tokens, True
        tokens.append(previous)
    return tokens, False


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5])
def test_a_wide_beam_finds_what_enumeration_finds(penalty):
    decoder, features = ToyDecoder(vocabulary=7), photos(3)
    options = DecodingOptions(beam=200, candidates=12, max_length=5, length_penalty=penalty)
    found = decode(decoder, features, options)
    for number in range(3):
        scored = []
        for length in range(4):
            for tokens in itertools.product([4, 5, 6], repeat=length):
                log_probs = sequence_log_probs(decoder, features[number : number + 1], [*tokens, END])
                scored.append((sum(log_probs) / (length + 1) ** penalty, list(tokens), log_probs))
        scored.sort(reverse=True)
        for hypothesis, (score, tokens, log_probs) in zip(found[number], scored):
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-5)
            assert hypothesis.log_probs == pytest.approx(log_probs, abs=1e-5)
        assert len(found[number]) == 12


@pytest.mark.parametrize("filters", FILTERS)
def test_a_beam_of_one_is_greedy_search(filters):
    decoder, features = ToyDecoder(), photos(30)
    options = DecodingOptions(beam=1, max_length=9, **filters)
    found = decode(decoder, features, options)
    for number in range(30):
        [hypothesis] = found[number]
        assert (hypothesis.tokens, hypothesis.finished) == greedy(decoder, features[number : number + 1], options)


@pytest.mark.parametrize("filters", [*FILTERS, {"sample": True, "top_p": 0.9, "temperature": 1.3}])
def test_a_batch_gives_what_each_photo_gives_alone(filters):
    decoder, features = ToyDecoder(), photos(40)
    options = DecodingOptions(beam=3, candidates=3, max_length=12, alternatives=2, **filters)
    together = decode(decoder, features, options)
    assert len({len(photo[0].tokens) for photo in together}) > 1  # photos end, and are dropped, at different steps
    for number, photo in enumerate(together):
        [alone] = decode(decoder, features[number : number + 1], options)
        assert texts([photo]) == texts([alone])
        for one, other in zip(photo, alone):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            np.testing.assert_allclose(one.attention, other.attention, rtol=1e-4, atol=1e-6)
            assert [[token for token, _ in step] for step in one.alternatives] == [
                [token for token, _ in step] for step in other.alternatives
            ]


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"sample": True, "temperature": 2.0, "top_k": 4}])
def test_log_probs_attention_and_gate_are_the_models_own_along_the_caption(options):
    decoder, features = ToyDecoder(), photos(10)
    found = decode(decoder, features, DecodingOptions(beam=4, candidates=4, max_length=10, **options))
    for number, photo in enumerate(found):
        for hypothesis in photo:
            one = features[number : number + 1]
            tokens = hypothesis.tokens + [END] * hypothesis.finished
            assert hypothesis.log_probs == pytest.approx(sequence_log_probs(decoder, one, tokens), abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(hypothesis.log_probs) / len(tokens) ** 0.7, abs=1e-5)
            state = decoder.start(one)
            for position, token in enumerate([START, *hypothesis.tokens][:-1] if hypothesis.tokens else []):
                _, state, extras = decoder.step(torch.tensor([token]), state)
                torch.testing.assert_close(torch.from_numpy(hypothesis.attention[position]), extras["attention"][0])
                assert hypothesis.gate[position] == pytest.approx(extras["gate"][0].item(), abs=1e-5)
            assert hypothesis.attention.shape == (len(hypothesis.tokens), 6)


def test_n_best_lists_are_sorted_and_distinct():
    for photo in decode(ToyDecoder(), photos(20), DecodingOptions(beam=5, candidates=5, max_length=8)):
        assert len(photo) == 5
        assert len({tuple(hypothesis.tokens) for hypothesis in photo}) == 5
        order = [(hypothesis.finished, hypothesis.score) for hypothesis in photo]
        assert order == sorted(order, reverse=True)


def test_asking_for_more_candidates_keeps_the_best_one():
    decoder, features = ToyDecoder(), photos(30)
    one = decode(decoder, features, DecodingOptions(beam=4, max_length=10))
    four = decode(decoder, features, DecodingOptions(beam=4, max_length=10, candidates=4))
    assert [photo[0].tokens for photo in one] == [photo[0].tokens for photo in four]


def test_lengths_stay_within_bounds_and_special_ids_never_appear():
    for sampled in (False, True):
        options = DecodingOptions(min_length=3, max_length=7, candidates=3, sample=sampled)
        for photo in decode(ToyDecoder(sharpness=1.0), photos(30), options):
            for hypothesis in photo:
                assert 3 <= len(hypothesis.tokens) <= (5 if hypothesis.finished else 6)
                assert min(hypothesis.tokens) >= 4


def test_unknown_appears_only_where_allowed():
    table = torch.zeros(6, 6)
    table[:, UNKNOWN] = 5.0
    for sampled in (False, True):
        options = DecodingOptions(beam=1, sample=sampled, max_length=6)
        assert UNKNOWN not in decode(Chain(table), photos(1), options)[0][0].tokens
        assert UNKNOWN in decode(Chain(table), photos(1), replace(options, allow_unknown=True))[0][0].tokens


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_run_of_tokens_repeats(size):
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    table[:, END] = -3.0
    for sampled in (False, True):
        options = DecodingOptions(no_repeat_ngram=size, max_length=20, candidates=3, sample=sampled)
        for hypothesis in decode(Chain(table), photos(1), options)[0]:
            runs = [tuple(hypothesis.tokens[at : at + size]) for at in range(len(hypothesis.tokens) - size + 1)]
            assert len(runs) == len(set(runs))


def test_a_caption_that_cannot_go_on_without_repeating_ends():
    options = DecodingOptions(beam=2, no_repeat_ngram=1, min_length=10, max_length=15)
    for sampled in (False, True):
        hypothesis = decode(Chain(torch.zeros(6, 6)), photos(2), replace(options, sample=sampled))[1][0]
        assert sorted(hypothesis.tokens) == [4, 5]
        assert hypothesis.finished


def test_a_cut_caption_is_kept_and_marked():
    table = torch.zeros(6, 6)
    table[:, END] = -30.0
    for sampled in (False, True):
        options = DecodingOptions(beam=2, candidates=2, max_length=6, sample=sampled)
        for hypothesis in decode(Chain(table), photos(3), options)[2]:
            assert not hypothesis.finished
            assert len(hypothesis.tokens) == len(hypothesis.log_probs) == 5


def test_any_finished_caption_comes_before_a_cut_one():
    table = torch.full((6, 6), -20.0)
    table[START, 4], table[START, END] = 0.0, -2.0  # ends at once with a lower score than going on for ever
    table[4, 4] = table[5, 5] = 5.0
    first, second = decode(Chain(table), photos(1), DecodingOptions(beam=2, candidates=2, max_length=6))[0]
    assert (first.tokens, first.finished) == ([], True)
    assert (second.tokens, second.finished) == ([4] * 5, False)
    assert second.score > first.score


def test_a_beam_wider_than_the_vocabulary_returns_what_exists():
    table = torch.zeros(5, 5)
    found = decode(Chain(table), photos(2), DecodingOptions(beam=50, candidates=50, max_length=4))
    assert texts(found) == [[[], [4], [4, 4], [4, 4, 4]]] * 2


def test_alternatives_are_the_likeliest_other_tokens():
    table = torch.tensor([[0.0, 0.0, 1.0, 9.0, 2.0, 4.0, 3.0]]).repeat(7, 1)
    options = DecodingOptions(beam=1, max_length=4, alternatives=2)
    [hypothesis] = decode(Chain(table), photos(1), options)[0]
    probabilities = table[0].softmax(0).tolist()
    assert hypothesis.tokens == [5, 5, 5]
    for step in hypothesis.alternatives:
        assert [token for token, _ in step] == [6, 4]
        assert [probability for _, probability in step] == pytest.approx([probabilities[6], probabilities[4]])


def test_alternatives_leave_out_tokens_that_cannot_occur():
    [hypothesis] = decode(Chain(torch.zeros(7, 7)), photos(1), DecodingOptions(beam=1, max_length=4, alternatives=7))[0]
    assert all(step for step in hypothesis.alternatives)
    assert all(probability > 0 for step in hypothesis.alternatives for _, probability in step)


def test_attention_can_be_left_out_and_no_photos_give_no_captions():
    [[hypothesis]] = decode(ToyDecoder(), photos(1), DecodingOptions(want_attention=False))
    assert hypothesis.attention is None
    assert hypothesis.gate is None
    assert decode(ToyDecoder(), photos(0)) == []


def test_weights_that_are_not_numbers_are_reported():
    for sampled in (False, True):
        with pytest.raises(CheckpointError, match="2 of 2 captions"):
            decode(Chain(torch.full((6, 6), torch.nan)), photos(2), DecodingOptions(sample=sampled))
    with pytest.raises(CheckpointError, match="not finite"):
        sample(Chain(torch.full((6, 6), torch.nan)), photos(2), 3, DecodingOptions(sample=True))


# Ensembles


def test_an_ensemble_of_two_alike_is_one():
    decoder, features, options = ToyDecoder(), photos(10), DecodingOptions(candidates=3)
    one, two = decode(decoder, features, options), decode([decoder, decoder], features, options)
    assert texts(one) == texts(two)
    for single, double in zip(itertools.chain(*one), itertools.chain(*two)):
        assert single.log_probs == pytest.approx(double.log_probs, abs=1e-5)
        np.testing.assert_allclose(single.attention, double.attention, rtol=1e-5)


@torch.no_grad()
def test_an_ensemble_averages_probabilities_and_each_member_sees_its_features():
    members, each = [ToyDecoder(seed=1), ToyDecoder(seed=2)], [photos(2, seed=1), photos(2, seed=2)]
    ensemble = Ensemble([TorchDecoder(member) for member in members])
    token = np.array([START, START])
    logits, state, extras = ensemble.step(token, ensemble.start(each))
    apart = [TorchDecoder(member).step(token, member.start(features)) for member, features in zip(members, each)]
    mean = sum(np.exp(log_softmax(member_logits)) for member_logits, _, _ in apart) / 2
    np.testing.assert_allclose(np.exp(logits), mean, rtol=1e-5)
    np.testing.assert_allclose(extras["attention"], (apart[0][2]["attention"] + apart[1][2]["attention"]) / 2)
    assert set(state.hypotheses) == {"0.hidden", "1.hidden"}
    assert decode(members, each)[0][0].tokens


def test_an_ensemble_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="no members"):
        Ensemble([])
    with pytest.raises(ConfigError, match=r"\[9, 8\]"):
        decode([ToyDecoder(9), ToyDecoder(8)], photos(1))
    with pytest.raises(ConfigError, match="2 decoders but 3"):
        decode([ToyDecoder(), ToyDecoder()], [photos(1)] * 3)
    with pytest.raises(ConfigError, match=r"\[1, 2\] photos"):
        decode([ToyDecoder(), ToyDecoder()], [photos(1), photos(2)])


# When a search stops


def test_a_sure_long_caption_is_not_lost_to_short_bad_ones_that_end_first():
    table = torch.full((9, 9), 1e-6)
    for token, following in ((START, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, END)):
        table[token, END] = 0.002
        table[token, following] = 0.99
    for penalty in (0.0, 0.7, 1.0):
        best = decode(Chain(table.log()), photos(3), DecodingOptions(beam=3, length_penalty=penalty))
        assert [found[0].tokens for found in best] == [[4, 5, 6, 7, 8]] * 3


@pytest.mark.parametrize("sampled", [False, True])
def test_finished_photos_are_no_longer_computed(sampled: bool):
    """Half the photos end at once, the others never."""

    class Halves:
        def __init__(self) -> None:
            self.rows: list[int] = []

        def start(self, features: ImageFeatures) -> DecoderState:
            ends = np.where(np.arange(len(features)) % 2 == 0, 50.0, -50.0).astype(np.float32)
            return DecoderState({}, {"ends": ends})

        def step(self, tokens: np.ndarray, state: DecoderState):
            self.rows.append(len(tokens))
            logits = np.random.default_rng(len(self.rows)).normal(size=(len(tokens), 9)).astype(np.float32)
            logits[:, END] = state.hypotheses["ends"]
            return logits, state, {}

    decoder = Halves()
    found = decoding.decode(decoder, photos(8), DecodingOptions(beam=1, max_length=6, sample=sampled))
    assert decoder.rows == [8, 4, 4, 4, 4]
    assert [caption[0].finished for caption in found] == [True, False] * 4


class RandomDecoder:
    """Random next-token logits for every step and last token, so that no two captions tie; counts its steps."""

    def __init__(self, seed: int, length: int, vocabulary: int = 8):
        random = np.random.default_rng(seed)
        self.table = random.normal(0, random.uniform(0.5, 3), (length, vocabulary, vocabulary)).astype(np.float32)
        self.table[:, :, END] += random.uniform(-3, 2)  # some models end at once, some hardly ever
        self.steps = 0

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({}, {"none": np.zeros((len(features), 1), np.float32)})

    def step(self, tokens: np.ndarray, state: DecoderState):
        self.steps += 1
        return self.table[self.steps - 1, tokens], state, {}


Finished = list[tuple[float, list[int]]]  # scores and tokens, best first


def patient_search(table: np.ndarray, options: DecodingOptions) -> tuple[list[tuple[float, Finished]], Finished]:
    """Beam search that never stops early, one photo, one hypothesis at a time; written apart from the library.

    Gives for every step the total of the best unfinished hypothesis and what is finished by then, and what it finds.
    """
    log_probs = torch.from_numpy(table).double().log_softmax(-1).numpy()
    log_probs[..., [PAD, START, UNKNOWN]] = -np.inf
    beams: Finished = [(0.0, [])]
    finished: Finished = []
    history = []
    for step in range(options.max_length - 1):
        extended = [
            (total + log_prob, [*tokens, token])
            for total, tokens in beams
            for token, log_prob in enumerate(log_probs[step, [START, *tokens][-1]].tolist())
            if log_prob > -np.inf
        ]
        extended = sorted(extended, key=lambda pair: -pair[0])[: 2 * options.beam]
        finished += [
            (total / len(tokens) ** options.length_penalty, tokens[:-1])
            for total, tokens in extended[: options.beam]
            if tokens[-1] == END
        ]
        finished = sorted(finished, key=lambda pair: -pair[0])[: options.beam]
        beams = [(total, tokens) for total, tokens in extended if tokens[-1] != END][: options.beam]
        history.append((beams[0][0], list(finished)))
    return history, finished


def stopping_steps(history: list[tuple[float, Finished]], options: DecodingOptions) -> tuple[int, int]:
    """The first step after which nothing can be overtaken any more, and that after which a full list would not be by
    captions that end next; each the number of all steps if there is none."""
    proven = filled = len(history)
    for step, (total, finished) in reversed(list(enumerate(history, start=1))):
        if len(finished) < options.candidates:
            continue
        worst = finished[options.candidates - 1][0]
        if worst >= total / (options.max_length - 1) ** options.length_penalty:
            proven = step
        if len(finished) == options.beam and worst >= total / (step + 1) ** options.length_penalty:
            filled = step
    return proven, filled


@pytest.mark.parametrize("penalty", [0.0, 0.3, 0.7, 1.0, 1.6])
@pytest.mark.parametrize(("beam", "candidates"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_a_search_stops_neither_before_nor_after_its_bound_allows(penalty: float, beam: int, candidates: int):
    options = DecodingOptions(beam=beam, candidates=candidates, max_length=9, length_penalty=penalty)
    reasons = set()
    for seed in range(150):
        decoder = RandomDecoder(seed, options.max_length)
        [found] = decoding.decode(decoder, photos(1), options)
        history, last = patient_search(decoder.table, options)
        proven, filled = stopping_steps(history, options)
        stop = min(proven, filled)
        assert decoder.steps == stop, f"seed {seed}"
        expected = last if proven <= filled else history[stop - 1][1]
        expected = expected[:candidates]
        assert [one.tokens for one in found if one.finished] == [tokens for _, tokens in expected], f"seed {seed}"
        assert [one.score for one in found if one.finished] == pytest.approx([score for score, _ in expected], abs=1e-4)
        reasons.add("never" if stop == len(history) else "proven" if proven < filled else "filled")
    assert {"filled", "never"} <= reasons
    if (beam, candidates) == (3, 1):
        assert "proven" in reasons, "none of these models tests the bound"
