"""Word lists for the analysis of failures: subjects, words without content, and -ing words that are no action."""

from __future__ import annotations

# fmt: off
SUBJECTS = {
    "person": frozenset({
        "man", "men", "woman", "women", "boy", "boys", "girl", "girls", "child", "children", "kid", "kids",
        "person", "people", "baby", "toddler", "lady", "guy", "guys", "couple", "group", "crowd", "player",
        "players", "family", "friends", "teenager", "teenagers", "adult", "adults", "someone", "male", "female",
        "skateboarder", "snowboarder", "skier", "surfer", "climber", "biker", "rider", "cyclist", "runner", "hiker",
        "swimmer", "musician", "drummer", "bicyclist", "wakeboarder", "kayaker", "students", "spectators", "friend",
    }),
    "dog": frozenset({
        "dog", "dogs", "puppy", "puppies", "poodle", "terrier", "hound", "greyhound", "greyhounds",
    }),
    "animal": frozenset({
        "animal", "animals", "horse", "horses", "cat", "cats", "bird", "birds", "cow", "cows", "sheep", "duck",
        "ducks",
    }),
}
FUNCTION = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "some", "each", "another", "other", "his", "her", "its",
    "their", "and", "or", "but", "of", "in", "on", "at", "to", "from", "with", "without", "by", "for", "into",
    "onto", "over", "under", "through", "across", "along", "around", "behind", "beside", "near", "next", "up",
    "down", "off", "out", "front", "is", "are", "was", "were", "be", "being", "been", "has", "have", "having",
    "while", "as", "who", "which", "what", "where", "it", "he", "she", "they", "them", "him", "there", "one",
})
NO_ACTION = frozenset({
    "building", "clothing", "swing", "ring", "string", "wing", "king", "ceiling", "evening", "morning", "thing",
    "something", "nothing", "during", "spring", "sling", "railing", "wedding", "painting", "crossing",
})
# fmt: on
