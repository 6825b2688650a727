"""What every decoder promises, over the whole registry: all words at once equal one by one, and nothing looks ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from decoder_cases import CELLS, LENGTH, VARIANTS, VOCABULARY, build, close, photos, words
from torch import Tensor
from torch.nn import functional as F

from sightline.decoding.hypotheses import DecoderState
from sightline.errors import ConfigError
from sightline.nn.checkpoint import CaptionModel
from sightline.nn.decoders import DECODERS, Decoder, build_decoder
from sightline.nn.decoders.transformer import Attention, DecoderBlock, EncoderBlock, plain_attention
from sightline.nn.encoders import build_encoder
from sightline.types import ImageFeatures

WORD_VECTORS = {f"{name}, other word vectors": VARIANTS[name] | {"word_dimension": 3} for name in DECODERS}
ALL = {**VARIANTS, **WORD_VECTORS}


def walk(decoder: Decoder, state: DecoderState, tokens: Tensor) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
    """Logits and extras of every step, stacked over time."""
    logits, extras = [], []
    for t in range(tokens.shape[1]):
        one, state, outputs = decoder.step(tokens[:, t], state)
        logits.append(one)
        extras.append(outputs)
    stacked = {name: torch.stack([outputs[name] for outputs in extras], 1) for name in extras[0]}
    return torch.stack(logits, 1), state, stacked


@pytest.fixture(params=ALL, ids=lambda name: name.replace(" ", "_").replace(",", ""))
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return build(ALL[request.param])


def test_every_registered_decoder_is_among_the_variants() -> None:
    assert {options["name"] for options in VARIANTS.values()} == set(DECODERS)


# Forward and step


@pytest.mark.parametrize("causal", [False, True])
def test_plain_attention_equals_the_fused_kernel(causal: bool) -> None:
    query, keys, values = (torch.randn(2, 4, 5, 8) for _ in range(3))
    fused = F.scaled_dot_product_attention(query, keys, values, is_causal=causal)
    assert close(plain_attention(query, keys, values, is_causal=causal), fused)


def test_training_in_bfloat16_learns_what_float32_learns() -> None:
    """Its gradients come from plain attention, those of float32 from the fused kernel."""
    attention, x = Attention(8, 2), torch.randn(2, 5, 8)
    gradients = []
    for bfloat16 in (False, True):
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            output = attention(x, *attention.keys_values(x))
        output.float().square().sum().backward()
        gradients.append([parameter.grad for parameter in attention.parameters()])
    for exact, rounded in zip(*gradients):
        assert F.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0) > 0.99


@torch.no_grad()
def test_all_words_at_once_equal_one_by_one(decoder: Decoder) -> None:
    features, tokens = photos(3), words(3)
    output = decoder(features, tokens)
    logits, _, extras = walk(decoder, decoder.start(features), tokens)
    assert output.logits.shape == (3, LENGTH, VOCABULARY)
    assert close(output.logits, logits)
    if output.attention is not None:
        assert close(output.attention, extras["attention"])
    for name, value in output.extras.items():
        assert close(value, extras[name])


@torch.no_grad()
def test_captions_of_a_photo_in_one_call_equal_one_at_a_time(decoder: Decoder) -> None:
    features, tokens = photos(2), words(6)
    together = decoder(features, tokens).logits
    for row in range(6):
        photo = row // 3
        alone = decoder(features[photo : photo + 1], tokens[row : row + 1]).logits
        assert close(together[row : row + 1], alone)


@torch.no_grad()
def test_beams_of_a_photo_in_one_step_equal_one_at_a_time(decoder: Decoder) -> None:
    features, tokens = photos(2), words(6)
    together, _, _ = walk(decoder, decoder.start(features).repeat(3), tokens)
    assert close(together, decoder(features, tokens).logits)


@torch.no_grad()
def test_a_later_word_changes_nothing_before_it(decoder: Decoder) -> None:
    features, tokens = photos(2), words(2)
    before = decoder(features, tokens).logits
    for position in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        after = decoder(features, changed).logits
        assert close(before[:, :position], after[:, :position])
        assert not close(before[:, position:], after[:, position:])


@torch.no_grad()
def test_padding_after_a_caption_changes_nothing_before_it(decoder: Decoder) -> None:
    features, tokens = photos(2), words(2, LENGTH - 3)
    padded = torch.cat([tokens, torch.zeros(2, 3, dtype=torch.long)], 1)
    assert close(decoder(features, tokens).logits, decoder(features, padded).logits[:, : LENGTH - 3])


@torch.no_grad()
def test_the_words_depend_on_the_photo(decoder: Decoder) -> None:
    tokens = words(1).expand(2, -1)
    logits = decoder(photos(2), tokens).logits
    assert not close(logits[0], logits[1])


def test_every_parameter_is_trained(decoder: Decoder) -> None:
    decoder.train()
    decoder(photos(4), words(4)).logits.square().mean().backward()
    untouched = [name for name, p in decoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []


# States


@torch.no_grad()
def test_reordered_hypotheses_go_on_as_the_ones_they_became(decoder: Decoder) -> None:
    features, tokens = photos(2), words(4, 3)
    _, state, _ = walk(decoder, decoder.start(features).repeat(2), tokens)
    rows = torch.tensor([1, 1, 3, 2])  # beams never leave their photo
    following = words(4, 1, seed=5)[:, 0]
    logits, _, _ = decoder.step(following, state.reorder(rows))
    complete = torch.cat([tokens[rows], following[:, None]], 1)
    assert close(logits, decoder(features, complete).logits[:, -1])


@torch.no_grad()
def test_kept_photos_go_on_as_if_the_others_had_never_been(decoder: Decoder) -> None:
    features, tokens = photos(3), words(6, 3)
    _, state, _ = walk(decoder, decoder.start(features).repeat(2), tokens)
    kept = state.keep(torch.tensor([0, 2]), torch.tensor([0, 1, 4, 5]))
    following = words(6, 1, seed=5)[[0, 1, 4, 5], 0]
    logits, after, _ = decoder.step(following, kept)
    full = torch.cat([tokens[[0, 1, 4, 5]], following[:, None]], 1)
    alone = ImageFeatures(features.grid[[0, 2]], features.pooled[[0, 2]], 2, 2)
    assert close(logits, decoder(alone, full).logits[:, -1])
    assert {len(value) for value in after.hypotheses.values()} == {4}
    assert {len(value) for value in after.encoder_cache.values()} <= {2}


@torch.no_grad()
def test_a_step_leaves_the_state_it_was_given(decoder: Decoder) -> None:
    state = decoder.start(photos(2))
    before = {name: value.clone() for name, value in {**state.encoder_cache, **state.hypotheses}.items()}
    decoder.step(words(2)[:, 0], state)
    assert all(torch.equal(before[name], value) for name, value in {**state.encoder_cache, **state.hypotheses}.items())


def test_the_spec_rebuilds_the_same_network(decoder: Decoder) -> None:
    again = build_decoder(**decoder.spec)
    again.load_state_dict(decoder.state_dict())
    features, tokens = photos(2), words(2)
    with torch.no_grad():
        assert torch.equal(again.eval()(features, tokens).logits, decoder(features, tokens).logits)


# Attention


@torch.no_grad()
def test_attention_shares_sum_to_one_over_the_grid_cells(decoder: Decoder) -> None:
    _, _, extras = walk(decoder, decoder.start(photos(2)), words(2))
    if not decoder.uses_grid:
        assert extras == {}
        return
    attention = extras["attention"]
    assert attention.shape == (2, LENGTH, CELLS)
    assert (attention >= 0).all()
    total = attention.sum(-1)
    if getattr(decoder, "pooled", False):  # the rest goes to the pooled vector, which is no cell
        assert ((total > 0) & (total < 1)).all()
    else:
        assert close(total, torch.ones_like(total))
    if "gate" in extras:
        assert ((extras["gate"] > 0) & (extras["gate"] < 1)).all()


@pytest.mark.parametrize(("options", "has_gate"), [({}, True), ({"gate": False}, False), ({"mode": "hard"}, True)])
def test_the_gate_belongs_to_both_modes_and_can_be_left_out(options: dict[str, Any], has_gate: bool) -> None:
    output = build(VARIANTS["attention-lstm"] | options)(photos(1), words(1))
    assert ("gate" in output.extras) == has_gate


@torch.no_grad()
def test_the_transformer_tells_its_heads_apart() -> None:
    decoder = build(VARIANTS["transformer"])
    _, _, extras = decoder.step(words(2)[:, 0], decoder.start(photos(2)))
    assert extras["attention_by_head"].shape == (2, 2, 2, CELLS)  # rows, blocks, heads, cells
    assert close(extras["attention_by_head"].mean((1, 2)), extras["attention"])


@torch.no_grad()
def test_the_transformer_looks_where_what_it_adds_comes_from() -> None:
    attention = Attention(8, heads=2)
    values = torch.randn(3, 2, CELLS, 4)
    values[:, :, 3] = 0  # a cell for idle heads: whatever its weight, it adds nothing
    strengths = attention.strengths(values)
    assert (strengths[:, :, 3] == 0).all()
    alone = torch.zeros(3, 2, CELLS, 4)
    alone[:, 1, 2] = values[:, 1, 2]  # one head, one cell
    added = attention.output(attention._join(alone)) - attention.output.bias
    assert close(added[:, 2].norm(dim=-1), strengths[:, 1, 2])


@torch.no_grad()
def test_an_evidence_map_shows_which_cells_raise_the_likely_word_above_its_rivals() -> None:
    options = {"blocks": 1, "pooled": False, "attention_maps": "evidence"}
    decoder = build(VARIANTS["transformer"] | options).double()
    decoder.blocks[0].feedforward[-1].weight.zero_()  # a map leaves out what later layers make of a cell
    features = ImageFeatures(photos(2).grid.double(), photos(2).pooled.double(), 2, 2)
    state, tokens = decoder.start(features).repeat(3), words(6)[:, 0]
    logits, _, extras = decoder.step(tokens, state)
    likely, *rivals = logits.topk(8).indices.T
    shares = logits.gather(1, torch.stack(rivals, 1)).softmax(-1)

    def margin(scores: Tensor) -> Tensor:
        others = (scores.gather(1, torch.stack(rivals, 1)) * shares).sum(-1)
        return scores.gather(1, likely[:, None])[:, 0] - others

    falls = torch.zeros_like(extras["attention_by_head"])
    for head in range(2):
        for cell in range(CELLS):
            cache = {name: value.clone() for name, value in state.encoder_cache.items()}
            cache["values_0"][:, head, cell] *= 1 - 1e-6  # this cell adds a little less
            changed, _, _ = decoder.step(tokens, replace(state, encoder_cache=cache))
            falls[:, 0, head, cell] = margin(logits) - margin(changed)
    assert (falls < 0).any() and (falls > 0).any()
    falls = falls.clamp(min=0)
    expected = falls / falls.mean((1, 2)).sum(-1)[:, None, None, None]
    assert torch.allclose(extras["attention_by_head"], expected, atol=1e-3)


@torch.no_grad()
def test_hard_attention_in_training_draws_one_location_per_word_and_reports_its_log_probability() -> None:
    decoder = build(VARIANTS["hard attention, expectation"]).train()
    decoder.dropout.p = 0.0
    features, tokens = photos(2), words(200)
    decoder.expectation = 0.0
    output = decoder(features, tokens)
    location = output.extras["location"]
    assert location.shape == output.extras["location_log_prob"].shape == tokens.shape
    log_attention = output.attention.log()
    assert close(output.extras["location_log_prob"], log_attention.gather(2, location[:, :, None]).squeeze(2))
    assert close(output.extras["location_entropy"], -(output.attention * log_attention).sum(-1))
    assert not output.extras["on_expectation"].any()
    drawn = torch.nn.functional.one_hot(location[:, 0], CELLS).float().view(2, 100, CELLS).mean(1)
    expected = (
        output.attention[:, 0].view(2, 100, CELLS).mean(1)
    )  # the first word's attention does not depend on the words
    assert (drawn - expected).abs().max() < 0.2  # 4 standard deviations of a share of 100 draws


@torch.no_grad()
def test_hard_attention_attends_to_exactly_the_drawn_location() -> None:
    """One word of one photo: the same draw gives the same logits, another location gives others."""
    decoder = build(VARIANTS["hard attention, expectation"]).train()
    decoder.dropout.p, decoder.expectation = 0.0, 0.0
    tokens = torch.full((60, 1), 5)
    output = decoder(photos(1), tokens)
    locations = output.extras["location"][:, 0]
    assert len(locations.unique()) > 1
    for first in locations.unique():
        of_location = output.logits[locations == first]
        assert close(of_location, of_location[:1].expand_as(of_location))
        assert not close(of_location[0], output.logits[locations != first][0])


@torch.no_grad()
def test_the_expected_share_of_rows_is_trained_on_the_expectation() -> None:
    decoder = build(VARIANTS["hard attention, expectation"]).train()
    decoder.dropout.p, decoder.expectation = 0.0, 1.0
    features, tokens = photos(2), words(4)
    trained = decoder(features, tokens)
    assert trained.extras["on_expectation"].all()
    assert close(trained.logits, decoder.eval()(features, tokens).logits)
    decoder.train().expectation = 0.5
    share = decoder(features, words(400)).extras["on_expectation"].float().mean()
    assert 0.4 < share < 0.6


@torch.no_grad()
def test_hard_attention_looks_at_the_expectation_or_the_most_likely_place_as_asked() -> None:
    expectation, likely = build(VARIANTS["hard attention, expectation"]), build(VARIANTS["hard attention, most likely"])
    likely.load_state_dict(expectation.state_dict())
    features, tokens = photos(2), words(2)
    a, b = expectation(features, tokens), likely(features, tokens)
    assert close(a.attention[:, 0], b.attention[:, 0])
    assert not close(a.logits, b.logits)
    sharp = expectation.state_dict()
    sharp["energy.weight"] = sharp["energy.weight"] * 1e5  # where one location takes all, the two agree
    expectation.load_state_dict(sharp)
    likely.load_state_dict(sharp)
    assert close(expectation(features, tokens).logits, likely(features, tokens).logits)


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["attention-lstm", "attention-lstm, bilinear score"])
def test_attention_follows_its_formula(variant: str) -> None:
    """The plain form of both scores on normalised annotation vectors, without what makes them fast."""
    decoder, features, tokens = build(VARIANTS[variant]), photos(2), words(2)
    state = decoder.start(features)
    annotations = decoder.norm(features.grid)  # (B, N, D)
    hidden = state.hypotheses["hidden"]
    if "bilinear" in variant:
        score = torch.einsum("bnd,hd,bh->bn", annotations, decoder.key.weight, hidden)
        assert not hasattr(decoder, "energy")
    else:
        inner = decoder.key(annotations) + decoder.query(hidden)[:, None]
        score = decoder.energy(torch.tanh(inner)).squeeze(-1)
    _, _, outputs = decoder.step(tokens[:, 0], state)
    assert close(outputs["attention"], score.softmax(-1))
    assert outputs["attention"].std(1).min() > 1e-3


# Sizes


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_are_those_of_source_001() -> None:
    assert count(EncoderBlock(128, 4, 0.1)) == 197_888
    assert count(DecoderBlock(128, 4, 512, 0.1)) == 263_808
    encoder = build_encoder("patches")
    decoder = build_decoder(
        "transformer", features=128, vocabulary=70, max_length=48, width=128, heads=4, blocks=2, pooled=False
    )
    assert CaptionModel(encoder, decoder).count() == (1_005_254, 1_005_254)


def test_tied_output_weights_are_the_words_vectors() -> None:
    tied, free = build(VARIANTS["transformer with tied output"]), build(VARIANTS["transformer"])
    assert count(free) - count(tied) == VOCABULARY * 8
    with pytest.raises(ConfigError, match=r"tie_output needs word vectors of decoder\.width=8, they have 3"):
        build(VARIANTS["transformer with tied output"] | {"word_dimension": 3})
