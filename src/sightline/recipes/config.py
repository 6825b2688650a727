"""A recipe: which parts make a captioner and how it is trained. TOML in, all faults reported at once.

Every section is one model here and nothing else in the package knows recipes' key names: parts are built from plain
values (``section.options()``), so a constructor never sees a config object.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from sightline.errors import ConfigError, nearest

RECIPES = Path(__file__).parent
PLUS = "+"  # joins the names, and the weights, of several encoders

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Depth = Annotated[int, Field(ge=1, le=1000)]  # a damaged number must not build blocks until memory ends
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
# One number, or one for each source of a mixture.
BySource = Annotated[
    Annotated[NonNegative, Tag("one")] | Annotated[dict[str, NonNegative], Tag("by-source")],
    Discriminator(lambda value: "by-source" if isinstance(value, dict) else "one"),
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def options(self) -> dict[str, Any]:
        """Keyword arguments for the part this section names."""
        return self.model_dump(exclude={"name"})


def _check_divides(part: str, small: int, whole: str, large: int) -> None:
    if large % small:
        raise ValueError(f"{part}={small} does not divide {whole}={large}")


class DataSection(Section):
    captions: Literal["random", "all", "fixed"] = "random"  # each epoch: n drawn anew, every one, always the first n
    captions_per_photo: Size = 1
    min_captions: Size = 1  # train on photos with at least so many: rewards by few references are noisy
    by_length: bool = False  # batches of captions of one length (Show, Attend and Tell, section 4.3)
    augment: bool = False
    views: Size = 1  # how many views of a photo a frozen encoder's or teacher's cache has (1: the plain one)
    cache: bool = True  # compute a frozen encoder's features once
    cache_precision: Literal["float32", "bfloat16", "int8"] = "float32"  # what the cached features are computed in
    weights: dict[str, Positive] = Field(default_factory=dict)  # of a mixture's sources: how often an epoch has a photo
    workers: Count = 0
    text: tuple[str, ...] | None = None  # no photos: learn the language from the captions and these files, one a line


class TokenizerSection(Section):
    name: Literal["char", "word", "bpe"] = "word"
    max_length: Size | None = None  # tokens, start and end included; None: what suits the kind
    min_count: Count | None = None
    size: Size | None = None  # of the vocabulary, special tokens included

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name"}, exclude_none=True)


class PretrainedEncoder(Section):
    name: str
    weights: str = "library"  # "library": its own download; "random"; or a .safetensors file in the library's layout
    image_size: Size | None = None  # None: what the weights were trained with
    grid: Size | None = None  # pool adaptively to grid x grid; None: as the network gives it
    fit: Literal["crop", "squash"] = "crop"  # the photo's centre square, or the whole photo made square
    train: str = "frozen"  # "frozen", "all", or the layer to fine-tune from
    learning_rate: Positive | None = None  # of the encoder, where it is trained; None: a tenth of the decoder's
    options_: dict[str, Any] = Field(default_factory=dict, alias="options")  # further arguments of the architecture

    def options(self) -> dict[str, Any]:
        return self.model_dump(include={"weights", "image_size", "grid", "fit"}) | {"options": self.options_}


class PatchEncoder(Section):
    name: Literal["patches"]
    image_size: Size = 128
    patch_size: Size = 8
    width: Size = 128
    blocks: Depth = 2
    heads: Size = 4
    dropout: Fraction = 0.1
    train: Literal["all"] = "all"
    learning_rate: Positive | None = None

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        _check_divides("encoder.patch_size", self.patch_size, "encoder.image_size", self.image_size)
        _check_divides("encoder.heads", self.heads, "encoder.width", self.width)
        return self

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "train", "learning_rate"})


class LstmDecoder(Section):
    name: Literal["lstm"]
    width: Size = 256  # of the word vectors and the projected photo
    hidden: Size = 256
    dropout: Fraction = 0.5


class AttentionLstmDecoder(Section):
    name: Literal["attention-lstm"]
    mode: Literal["soft", "hard"] = "soft"
    width: Size = 512  # of the word vectors
    hidden: Size = 512
    attention: Size = 512  # of the additive score's hidden layer
    dropout: Fraction = 0.5
    gate: bool = True
    score: Literal["additive", "bilinear"] = "additive"  # v' tanh(W_a a + W_h h + b), or a' W h
    attend: Literal["expectation", "most-likely"] = "expectation"  # hard attention when captioning


class TransformerDecoder(Section):
    name: Literal["transformer"]
    width: Size = 256
    heads: Size = 8
    blocks: Depth = 3
    feedforward: Size | None = None  # None: four times the width
    dropout: Fraction = 0.1
    pooled: bool = True  # the photo's one vector is a memory token beside the grid
    tie_output: bool = False  # output weights are the embedding's
    photo_blocks: Annotated[int, Field(ge=0, le=100)] = 0  # self-attention over the photo's cells before the words'
    # A map shows how much each cell adds to a word, or how much of that speaks for the word.
    attention_maps: Literal["norms", "evidence"] = "evidence"

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        _check_divides("decoder.heads", self.heads, "decoder.width", self.width)
        return self


class EmbeddingSection(Section):
    name: Literal["learned", "glove"] = "learned"
    file: str | None = None  # GloVe's text format, may be .gz; needed only to train
    dimension: Size | None = None  # of learned ones; None: the decoder's width
    frozen: bool = False


class CrossEntropy(Section):
    name: Literal["cross-entropy"] = "cross-entropy"
    label_smoothing: Fraction = 0.0
    doubly_stochastic: NonNegative = 0.0
    tau: Positive = 1.0  # what attention to each cell should sum to over a caption


class HardAttention(Section):
    name: Literal["hard-attention"]
    samples: Size = 1  # sequences of locations drawn for each caption
    entropy: NonNegative = 0.002
    baseline_decay: Fraction = 0.9
    expectation: Fraction = 0.5  # share of photos whose sample is replaced by its expected value
    score_weight: NonNegative = 1.0  # 1: the exact gradient of the bound
    doubly_stochastic: NonNegative = 0.0
    tau: Positive = 1.0
    label_smoothing: Fraction = 0.0
    baseline: Literal["own", "average"] = "own"  # "average", "caption": the paper's, much higher variance
    credit: Literal["later", "caption"] = "later"  # which words a location is credited with


class SelfCritical(Section):
    name: Literal["self-critical"]
    samples: Size = 5
    baseline: Literal["mean", "greedy"] = "mean"
    temperature: Positive = 1.0
    truth_penalty: NonNegative = 0.0  # taken off the reward for each object the photo lacks
    bleu: NonNegative = 0.0  # weight of the caption's BLEU-4 beside CIDEr-D
    meteor: NonNegative = 0.0  # weight of its METEOR, likewise


class Distillation(Section):
    name: Literal["distillation"]
    teacher: str
    temperature: Positive = 1.0
    teacher_weight: Fraction = 0.7  # the rest goes to the human captions
    feature_weight: NonNegative = 0.0
    init_from_teacher: bool = False  # start with its decoder, behind a linear map fitted to the features
    captions: Count = 0  # how many captions of each photo the teacher adds to the human ones

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"name", "captions"})


class SelfDistillation(Section):
    name: Literal["self-distillation"]
    temperature: Positive = 0.7  # of the captions that the model draws for itself
    missed_words: BySource = 0.0  # how strongly words are favoured that people use more often than the model


class TrainingSection(Section):
    epochs: Size = 20
    batch_size: Size = 32  # photos
    optimizer: Literal["adamw", "adam", "rmsprop"] = "adamw"
    learning_rate: Positive = 5e-4
    weight_decay: NonNegative = 0.01
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    warmup: Fraction = 0.05  # of all steps
    clip: NonNegative = 1.0  # gradient norm; 0: off
    precision: Literal["no", "bf16", "fp16"] = "no"
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0  # decay of the averaged weights; 0: off
    accumulate: Size = 1
    metric: Literal["cider", "bleu_4", "bleu_1", "rouge_l", "loss"] = "cider"  # of generated val captions
    patience: Count = 5  # evaluations without a better one; 0: never stop early
    evaluate_every: Size = 1  # epochs
    train_photos: Count = 0  # learn from only so many photos of each source; 0: all
    val_photos: Count = 0  # score only so many val photos of each source while training; 0: all
    checkpoint_minutes: Positive = 5.0
    init: str | None = None  # a model this run starts from: a folder, a shipped model's name ("default") or a hub name
    new_words: Size | None = None  # with init: words of the captions seen so often join its vocabulary; None: none do
    seed: int = 1


class DecodingSection(Section):
    beam: Size = 3
    length_penalty: float = 0.7
    max_length: Size | None = None  # None: the tokenizer's
    min_length: Count = 0
    no_repeat_ngram: Count = 0
    no_repeat_words: bool = False  # of a word tokenizer

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


def _encoder_kind(value: Any) -> str:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return "patches" if name == "patches" else "pretrained"


Encoder = Annotated[
    Annotated[PatchEncoder, Tag("patches")] | Annotated[PretrainedEncoder, Tag("pretrained")],
    Discriminator(_encoder_kind),
]
Decoder = Annotated[LstmDecoder | AttentionLstmDecoder | TransformerDecoder, Field(discriminator="name")]
Objective = Annotated[
    CrossEntropy | HardAttention | SelfCritical | Distillation | SelfDistillation, Field(discriminator="name")
]


class RecipeError(ConfigError):
    """All faults of one recipe."""

    def __init__(self, source: str, faults: list[str]):
        super().__init__(source, faults)
        self.source, self.faults = source, faults

    def __str__(self) -> str:
        return f"{self.source}: {'; '.join(self.faults)}"


class Recipe(Section):
    """One system, standing alone."""

    title: str = ""
    data: DataSection = DataSection()
    tokenizer: TokenizerSection = TokenizerSection()
    encoder: Encoder
    decoder: Decoder
    embedding: EmbeddingSection = EmbeddingSection()
    objective: Objective = CrossEntropy()
    training: TrainingSection = TrainingSection()
    decoding: DecodingSection = DecodingSection()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each setting, ``section.key``, that differs between two recipes given as `Recipe.to_dict`, with both values.

    The title is no setting.
    """
    one, other = _settings(before), _settings(after)
    return {key: (one.get(key), other.get(key)) for key in one | other if one.get(key) != other.get(key)}


def _settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    sections = {name: section for name, section in recipe.items() if isinstance(section, dict)}
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of recipe files, for editors that complete and check them."""
    schema = Recipe.model_json_schema()
    encoder = schema["properties"]["encoder"]
    encoder["anyOf"] = encoder.pop("oneOf")  # a section with keys of both kinds alone is valid, too
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# Keys that `--set section.key=none` resets: those of any section that may be None.
NONE_ALLOWED = frozenset(
    name
    for section in Section.__subclasses__()
    for name, info in section.model_fields.items()
    if type(None) in get_args(info.annotation)
)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """A shipped recipe by name, or a .toml file."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"recipe file {name!r} does not exist")
        return Path(name)
    path = RECIPES / f"{name}.toml"
    if name not in recipe_names():
        from sightline.recipes.plans import load_plans  # which reads recipes itself

        if name in load_plans().rows:
            raise ConfigError(
                f"unknown recipe {name!r}: it is a published row, which `sightline reproduce {name}` trains and scores"
            )
        raise ConfigError(f"unknown recipe {name!r}{nearest(name, recipe_names())}; `sightline recipes` lists them")
    return path


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by name or file, with ``section.key=value`` overrides."""
    path = find_recipe(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None
    return parse_recipe(values, overrides, source=name)


def parse_recipe(values: Mapping[str, Any], overrides: Iterable[str] = (), source: str = "recipe") -> Recipe:
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    if isinstance(merged.setdefault("objective", {}), dict):
        merged["objective"].setdefault("name", "cross-entropy")
    names_first = sorted(overrides, key=lambda override: not override.partition("=")[0].strip().endswith(".name"))
    faults = [fault for override in names_first if (fault := _apply(merged, override))]
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        faults += [_fault(item, merged) for item in error.errors()]
    if faults:
        raise RecipeError(source, faults)
    return recipe


def check_part(section: Literal["encoder", "decoder"], values: Mapping[str, Any]) -> None:
    """Hold a saved part's options to the rules of a recipe, without any conversion; ConfigError lists the faults."""
    try:
        kinds: dict[str, Any] = {"encoder": Encoder, "decoder": Decoder}
        kind: TypeAdapter[Any] = TypeAdapter(kinds[section])
        kind.validate_python(dict(values), strict=True)
    except ValidationError as error:
        faults = [_fault(item | {"loc": (section, *item["loc"])}, {section: values}) for item in error.errors()]
        raise ConfigError("; ".join(faults)) from None


def _apply(values: dict[str, Any], override: str) -> str | None:
    """Apply one ``section.key=value``; returns the fault, if any."""
    path, equals, text = override.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and section and key):
        return f"--set {override!r} is not of the form section.key=value"
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        return f"--set {override!r}: {section!r} is not a section"
    if key == "name" and _other_options(section, inner.get("name"), value):
        inner.clear()
    if key.startswith("options."):  # further arguments of the encoder's architecture
        inner["options"] = dict(inner.get("options") or {}) | {key.removeprefix("options."): value}
    else:
        inner[key] = None if value == "none" and key in NONE_ALLOWED else value
    return None


def _other_options(section: str, before: Any, after: Any) -> bool:
    """Whether a part of another name takes other options; the pretrained encoders share their options."""
    if section == "encoder":
        return "patches" in (before, after) and before != after
    return section in ("tokenizer", "decoder", "objective") and before != after


def _fault(item: Any, values: Mapping[str, Any]) -> str:
    """One pydantic error as a phrase, with the nearest valid name where a name is wrong."""
    where = [str(part) for part in item["loc"]]
    model = _model_of(where, values)
    key = ".".join(part for part in where if part not in {"patches", "pretrained"})
    if len(where) >= 3 and where[0] in ("decoder", "objective", "encoder"):  # pydantic inserts the unions' tags
        key = ".".join([where[0], *(part for part in where[2:] if part not in {"one", "by-source"})])
    if item["type"] == "extra_forbidden":
        fields = [info.alias or name for name, info in model.model_fields.items()] if model else []
        return f"unknown key {key!r}{nearest(key.split('.')[-1], fields)}"
    if item["type"] in ("union_tag_invalid", "literal_error"):
        expected = [part.strip("' ") for part in str(item["ctx"].get("expected_tags") or item["ctx"]["expected"])
                    .replace(" or ", ", ").split(",")]  # fmt: skip
        got = item["input"].get("name") if isinstance(item["input"], Mapping) else item["input"]
        key = f"{key}.name" if item["type"] == "union_tag_invalid" else key
        return f"{key} is {got!r}{nearest(str(got), expected)}; choose from {', '.join(expected)}"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    if item["type"] == "missing":
        return f"{key} is missing"
    if item["type"] == "union_tag_not_found":
        return f"{key}.name is missing"
    return f"{key or 'recipe'}: {item['msg'][:1].lower()}{item['msg'][1:]}, got {item['input']!r}"


def _model_of(where: list[str], values: Mapping[str, Any]) -> type[Section] | None:
    if len(where) == 1:
        return Recipe
    if where[0] in ("decoder", "objective", "encoder"):
        candidates: list[type[Section]] = [
            LstmDecoder, AttentionLstmDecoder, TransformerDecoder, CrossEntropy, HardAttention, SelfCritical,
            Distillation, SelfDistillation,
        ]  # fmt: skip
        if where[0] == "encoder":
            return PatchEncoder if where[1] == "patches" else PretrainedEncoder
        name = str((values.get(where[0]) or {}).get("name"))
        return next((model for model in candidates if name in str(model.model_fields["name"].annotation)), None)
    annotation = Recipe.model_fields[where[0]].annotation if where[0] in Recipe.model_fields else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None
