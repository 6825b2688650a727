"""CHAIR: which objects a caption names, and what it costs to name one that is not in the photo."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sightline.errors import DataError
from sightline.evaluation.metrics.chair import Chair, categories, check_categories, false_mentions, mentions, objects_in


def test_there_are_the_80_categories_of_coco_and_each_is_known_by_its_name():
    assert len(set(categories())) == 80
    for category in categories():
        if category != "orange":  # the word alone is mostly the colour
            assert objects_in(f"a {category}") == {category}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog chases two cats.", {"dog", "cat"}),
        ("Three men and a lady with knives", {"person", "knife"}),
        ("puppies on benches", {"dog", "bench"}),
        ("a hot dog on a bun", {"hot dog"}),
        ("two hotdogs, a dog", {"hot dog", "dog"}),
        ("a teddy bear next to a brown bear", {"teddy bear", "bear"}),
        ("a stuffed bear on a bed", {"teddy bear", "bed"}),
        ("a red traffic light", {"traffic light"}),
        ("a dining table with a tablecloth", {"dining table"}),
        ("a roll of toilet paper", set()),
        ("the toilet bowl", {"toilet"}),
        ("people wait at a train station near the bus stop", {"person"}),
        ("the train is on the train tracks", {"train"}),
        ("an orange truck and a man in orange", {"truck", "person"}),
        ("bananas and oranges", {"banana", "orange"}),
        ("an apple and an orange", {"apple", "orange"}),
        ("a man sits next to an orange and white cat", {"person", "cat"}),
        ("a glass of orange juice", set()),
        ("a fruit bat hangs from a tree", set()),
        ("a boy swings a bat", {"person", "baseball bat"}),
        ("a man-made lake", set()),
        ("a surf board and a skate board", {"surfboard", "skateboard"}),
        ("a man on skis at a ski resort", {"person", "skis"}),
        ("a man on a jet ski", {"person"}),
        ("a pizza box", set()),
        ("a slice of carrot cake", {"cake"}),
        ("cupcakes and a coffee mug", {"cake", "cup"}),
        ("a baby elephant and its mother", {"elephant"}),
        ("a mother holds her baby", {"person"}),
        ("a couple of zebras", {"zebra"}),
        ("a couple sitting on a couch", {"person", "couch"}),
        ("an empty street with no cars", set()),
        ("a sheep dog herds sheep", {"dog", "sheep"}),
        ("a pit bull", {"dog"}),
        ("a player with a tennis racquet hits a ball", {"person", "tennis racket", "sports ball"}),
        ("a ball game", set()),
        ("two glasses of red wine", {"wine glass"}),
        ("the dog's tail", {"dog"}),
        ("the men's room has urinals", {"toilet"}),
        ("a pitcher of water", set()),
        ("two firemen", {"person"}),
        ("a nice view", set()),
        ("", set()),
    ],
)
def test_objects_are_read_as_people_mean_them(text: str, expected: set[str]):
    assert objects_in(text) == expected


def test_every_mention_counts_and_words_for_one_object_side_by_side_are_one():
    assert [mention.words for mention in mentions("a dog and a dog")] == ["dog", "dog"]
    assert [mention.words for mention in mentions("a tabby cat")] == ["tabby"]


def test_a_word_with_two_meanings_is_true_for_either():
    assert objects_in("a man on a bike") == {"person", "bicycle"}
    assert false_mentions("a bike", {"motorcycle"}) == []
    assert false_mentions("a bike", {"bicycle"}) == []
    assert [mention.categories for mention in false_mentions("a bike", {"car"})] == [("bicycle", "motorcycle")]


def test_chair_counts_captions_and_mentions():
    captions = ["a dog and a cat", "a man on a horse", "a man, a man and a car", "a nice view"]
    labels = [{"dog"}, {"person", "horse"}, {"car"}, set()]
    chair = Chair()
    statistics = chair.statistics(captions, labels)
    assert chair.aggregate(statistics) == {"chair_s": 2 / 4, "chair_i": 3 / 7}
    assert chair.per_image(statistics)["chair_i"] == pytest.approx([1 / 2, 0, 2 / 3, 0])
    assert chair.per_image(statistics)["chair_s"].tolist() == [1, 0, 1, 0]


def test_photos_without_labels_do_not_count():
    chair = Chair()
    statistics = chair.statistics(["a dog", "a dog", "a dog"], [None, {"dog"}, set()])
    assert chair.aggregate(statistics) == {"chair_s": 0.5, "chair_i": 0.5}
    assert chair.aggregate(np.zeros((2, 4))) == {"chair_s": 0, "chair_i": 0}
    with pytest.raises(DataError, match="2 captions but labels for 1"):
        chair.statistics(["a", "b"], [None])


def test_unknown_categories_are_named():
    check_categories([{"dog"}, None, {"tv"}])
    with pytest.raises(DataError, match=r"2 names that COCO's 80 categories lack \(sofa, tvmonitor\)"):
        check_categories([{"dog", "sofa"}, {"tvmonitor"}])


def test_reading_captions_loads_neither_the_engine_nor_torch():
    program = (
        "import sys, sightline.evaluation.metrics.chair as chair; assert chair.objects_in('a dog') == {'dog'}; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'onnxruntime', 'PIL', 'sightline.engine')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
