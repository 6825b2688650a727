"""How varied a system's captions are: the same sentence for every beach scores well and says little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sightline.errors import DataError
from sightline.evaluation.metrics.ngrams import count_ngrams


def diversity(
    captions: Sequence[Sequence[str]], training: Iterable[Sequence[str]] | None = None
) -> dict[str, float | str]:
    """Distinct words and word pairs, vocabulary, length, the most repeated caption; what is novel if given `training`.

    `distinct_1` and `distinct_2` are the share of words and of word pairs that are different ones.
    """
    if not captions:
        raise DataError("no captions to measure: give at least one")
    words: Counter = Counter()
    pairs: Counter = Counter()
    for caption in captions:
        words.update(count_ngrams(caption, 1))
        pairs.update(count_ngrams(caption, 2))
    repeated, times = Counter(tuple(caption) for caption in captions).most_common(1)[0]
    report: dict[str, float | str] = {
        "distinct_1": len(words) / max(1, words.total()),
        "distinct_2": len(pairs) / max(1, pairs.total()),
        "vocabulary": len(words),
        "mean_length": words.total() / len(captions),
        "most_repeated": " ".join(repeated),
        "most_repeated_count": times,
    }
    if training is not None:
        seen = {tuple(caption) for caption in training}
        report["novel"] = sum(tuple(caption) not in seen for caption in captions) / len(captions)
    return report
