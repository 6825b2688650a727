"""Penn Treebank tokens: each rule by example, equal to the COCO caption tools, linear time on hostile text."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sightline.evaluation.metrics.ptb import tokenize, tokenize_all

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "ptb_oracle.json").read_text(encoding="utf-8"))["pairs"]
DROPPED = {"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"}

# One line per example: a caption, a bar, its tokens.
EXAMPLES = {
    "plain words in lower case": """
        A Dog runs, two cats sit. | a dog runs two cats sit
        A dog.A cat | a dog.a cat
    """,
    "words joined by hyphens, slashes, periods and underscores": """
        t-shirt one-year-old 5-6 | t-shirt one-year-old 5-6
        and/or cathedral/clock-tower 1/2-inch a/b/c/d | and/or cathedral/clock-tower 1/2-inch a/b/c / d
        river.a t.v statefarm.com ab-cd.ef ab.cd-ef | river.a t.v statefarm.com ab-cd ef ab.cd-ef
        it.5 5.a men,one it;s a:b | it .5 5 a men one it s a b
        yes!no ok?why a_b | yes!no ok?why a_b
        multi- -bed elephant/ beach--kite a - b | multi bed elephant / beach kite a b
    """,
    "words cut in two": """
        cannot GONNA wanna gotta gimme lemme | can not gon na wan na got ta gim me lem me
        cannots wanna-be gonna's wannabe dunno | cannots wanna-be gonna 's wannabe dunno
        'tis 'Twas | 't is 't was
    """,
    "negations": """
        doesn't can't WON'T don'ts isn't's | does n't ca n't wo n't do n'ts is n't 's
        n't don`t don't-do donn't | n't do n`t do n't do donn t
    """,
    "clitics": """
        dog's they're he'd've I'll 5's a 's I'm | dog 's they 're he 'd 've i 'll 5 's a 's i 'm
        bird's-eye-view dog'sab t-shirt's | bird 's eye-view dog sab t-shirt 's
        dog''s | dog s
    """,
    "apostrophes in words": """
        o'clock l'oreal D'Angelo hors-d'oeuvres T'Pau | o'clock l'oreal d'angelo hors-d'oeuvres t'pau
        ma'am ne'er graffiti'ed e'er | ma'am ne'er graffiti'ed e'er
        c'mon s'mores nat'l li'l ev'ry | c'mon s'mores nat'l li'l ev'ry
        dunkin' somethin' ol' goin' | dunkin' somethin' ol' goin
        y'all d'b l' y' x d's | y' all d' b l' y x d 's
        ab'cd int'l po'boy dogs' | ab cd int l po boy dogs
    """,
    "apostrophes before words": """
        'em 'til 'cause 'tile | 'em 'til 'cause 'til e
        rock'n'roll rock 'n roll 'n. | rock 'n' roll rock 'n roll n.
        '90s '09 x '09. '5 '1990 | '90s '09 x 09 5 1990
    """,
    "quotes and brackets": """
        "hello" 'no' ``so'' 5" tall | hello no so 5 tall
        a (red) [dog] {x} | a -lrb- red -rrb- -lsb- dog -rsb- -lcb- x -rcb-
    """,
    "initialisms and single letters": """
        the u.s. t.v. J.P. u.s.-based T.V.s | the u.s. t.v. j.p. u.s.-based t.v.s
        a dog s. x M. A. jones | a dog s. x m. a. jones
        dog s. The man | dog s the man
        dog s. THe man s. the | dog s the man s. the
        dog s. Thing s. A-frame | dog s. thing s. a-frame
    """,
    "abbreviations": """
        St. ST. ave. Mr. dr. vs. gen. | st. st. ave. mr. dr. vs. gen.
        etc. rd. Inc. jan. Ph.D. net. | etc. rd. inc. jan. ph.d. net
        Wash. wash. La. la. PA. | wash. wash la. la pa.
        no. 5 no. x fig. 3 no.5 no.  5 | no. 5 no x fig. 3 no. 5 no 5
        etc.a st.a etc.ab ab-st. | etc. a st.a etc.ab ab-st
    """,
    "a period before a comma, semicolon or colon": """
        it., can.; t-shirt.: 5., it.! | it. can. t-shirt. 5. it
        5.5., dog's., and/or., | 5.5 dog 's and/or
    """,
    "runs of marks": """
        a.. b... cd... ...5 . . .5 | a. b. cd 5 5
        no! so!!! what?! ok? | no so !!! what ?! ok
        a -- b ---- c ----- d | a b c ----- d
    """,
    "other marks": """
        # #5 #hello ## @user a = b + c @ 50% ** * | # # 5 #hello ## @user a = b + c @ 50 % ** *
        $5 gr$$d US$5 us$ | $ 5 gr $ $ d us$ 5 us $
    """,
    "numbers": """
        3.5 10,000 11:05 11.01.2009 .99 :11 -5 | 3.5 10,000 11:05 11.01.2009 .99 :11 -5
        a,1 2+2 12:30-1:30 10-12 --5 | a ,1 2 +2 12:30 -1:30 10-12 5
        1st 2x4 3.5mm 1,000th 1.5-inch 5:54pm | 1st 2x4 3.5 mm 1,000 th 1.5-inch 5:54 pm
        22 3/4 in, 1 1/2-inch, 5  1/2 | 22_3/4 in 1_1/2 inch 5 1/2
        5-1/2-inch 1/4-mile 9/2/32 | 5-1/2 inch 1/4-mile 9/2/32
    """,
    "ampersands and entities": """
        AT&T A&amp;M's M&Ms at&t a & b | at&t a&m 's m&m s at & t a & b
        a&nbsp;b &lt; &gt; &quot;x&quot; don&apos;t &amp;amp; | a b < > x do n't & amp
    """,
    "characters beyond ASCII": """
        Café crème-brûlée русский 日本語 | café crème-brûlée русский 日本語
        don’t o’clock dog’s ‘so’ “so” «so» | do n't o’clock dog 's so so so
        a–b a—b a…b a‐b soft\xadly | a b a b a b a‐b softly
        1½ 5¢ £5 €5 5° m² ★ | 1 1/2 5 cents # 5 $ 5 5 ° m ² ★
        a\u200bb a\u3000b x😀y \ufffd ❤\ufe0f e\u0301t | a b a b x y ❤ e\u0301t
    """,
}
EXAMPLE_LINES = [
    pytest.param(*(part.strip() for part in line.split(" | ")), id=f"{rule}: {line.split(' | ')[0].strip()}")
    for rule, lines in EXAMPLES.items()
    for line in lines.strip().splitlines()
]


@pytest.mark.parametrize(("caption", "tokens"), EXAMPLE_LINES)
def test_rule_by_example(caption: str, tokens: str) -> None:
    expected = [token.replace("_", "\xa0") if "/" in token else token for token in tokens.split(" ")]
    assert tokenize(caption) == expected


@pytest.mark.parametrize("text", ["", " ", "\n\t\r", ". , ; : ' \" - -- ...", "\x00\x7f\ud800"])
def test_text_without_words_has_no_tokens(text: str) -> None:
    assert tokenize(text) == []


@pytest.mark.parametrize("text", ["http://a.com/b?c=d", "a@b.com", ":-) :D", "<b>x</b>", "(555) 123-4567", "C:\\a.txt"])
def test_what_has_no_rule_still_gives_tokens(text: str) -> None:
    tokens = tokenize(text)
    assert tokens and all(tokens)
    assert not DROPPED.intersection(tokens)


def test_line_break_in_a_caption_is_a_blank() -> None:
    assert tokenize("a dog\nruns\r\nfast") == ["a", "dog", "runs", "fast"]
    assert tokenize_all(["a dog\nruns", "a cat"]) == [["a", "dog", "runs"], ["a", "cat"]]


@pytest.mark.parametrize(
    ("captions", "first"),
    [
        (["a dog s.", "A man"], "a dog s"),
        (["a dog s.", "", " ", "The man"], "a dog s"),
        (["a dog s.", "Two men"], "a dog s."),
        (["a dog s.", "A"], "a dog s."),  # nothing ends the word
        (["a dog s.", "A", "b"], "a dog s"),
        (["a dog s."], "a dog s."),
        (["train no.", "5 men"], "train no."),
        (["train no. ", "5 men"], "train no"),
        (["train no.", "Two men"], "train no"),
        (["train no."], "train no"),
    ],
)
def test_next_caption_decides_on_an_open_period(captions: list[str], first: str) -> None:
    assert tokenize_all(captions)[0] == first.split(" ")


def test_equal_captions_before_different_ones_are_not_confused() -> None:
    tokens = tokenize_all(["a dog s.", "A man", "a dog s.", "Two men", "A man"])
    assert [" ".join(words) for words in tokens] == ["a dog s", "a man", "a dog s.", "two men", "a man"]


def test_equal_captions_have_lists_of_their_own() -> None:
    first, second = tokenize_all(["a dog", "a dog"])
    first.append("x")
    assert second == ["a", "dog"]


def test_stored_captions_have_the_tokens_of_the_coco_tools() -> None:
    captions, expected = zip(*ORACLE)
    found = [" ".join(tokens) for tokens in tokenize_all(captions)]
    different = [(caption, right, ours) for caption, right, ours in zip(captions, expected, found) if right != ours]
    assert not different
    assert len(captions) > 300


UNITS = """
    a 1 - ! & a, a. a- a/ a' 1, 1. -1 a.b- n't n' no. ma'a o'ab- &amp; A& é ’s ½ a_ a-1/ #a e' a1 ( *
"""


@pytest.mark.parametrize("unit", [*UNITS.split(), '"', " ", "\t", "\n", "1 ", "s. ", ". ", "1 1/", "s. A"])
def test_time_is_linear_in_the_length(unit: str) -> None:
    """Quadratic time would need minutes. The bound leaves room for a slow machine."""
    began = time.process_time()
    tokenize(unit * (200_000 // len(unit)))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("mark", ["'", ".", ",", "7"])
def test_a_megabyte_of_one_mark_takes_seconds(mark: str) -> None:
    began = time.process_time()
    tokenize(mark * 1_000_000)
    assert time.process_time() - began < 10


def test_many_open_captions_take_linear_time() -> None:
    began = time.process_time()
    tokenize_all(["s.", ""] * 20_000 + ["s."] + [""] * 20_000)
    assert time.process_time() - began < 10


def _lines(path: Path) -> list[str]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return text.decode("utf-8").rstrip("\n").split("\n")


def _flickr8k(shared: Path) -> list[str]:
    return [line.partition("\t")[2] for line in _lines(next((shared / "flickr8k").rglob("Flickr8k.token.txt")))]


def _coco(shared: Path) -> list[str]:
    return [text for line in _lines(shared / "coco/captions.jsonl.gz") for text in json.loads(line)["captions"]]


@pytest.mark.real
@pytest.mark.parametrize(
    ("read", "count"),
    [
        pytest.param(_flickr8k, 40_460, id="Flickr8k"),
        pytest.param(lambda shared: _lines(shared / "text/flickr30k_captions.txt.gz"), 113_890, id="Flickr30k"),
        pytest.param(lambda shared: _lines(shared / "text/coco_val2017_captions.txt.gz"), 23_223, id="COCO val2017"),
        pytest.param(_coco, 144_471, id="COCO"),
    ],
)
def test_all_captions_have_the_tokens_of_the_coco_tools(
    shared: Path, tmp_path: Path, read: Callable[[Path], list[str]], count: int
) -> None:
    package = importlib.util.find_spec("pycocoevalcap")
    java = shutil.which("java")
    if package is None or java is None:
        pytest.skip("needs Java and the package pycocoevalcap")
    try:
        captions = read(shared)
    except (FileNotFoundError, StopIteration):
        pytest.skip(f"these captions are not in {shared}")
    assert len(captions) == count
    folder = Path(next(iter(package.submodule_search_locations or []))) / "tokenizer"
    file = tmp_path / "captions.txt"
    file.write_text("\n".join(captions), encoding="utf-8")
    program = [java, "-Dfile.encoding=UTF-8", "-cp", str(next(folder.glob("stanford-corenlp-*.jar")))]
    options = ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase", str(file)]
    answer = subprocess.run([*program, *options], check=True, capture_output=True, encoding="utf-8").stdout
    expected = [[word for word in line.split(" ") if word and word not in DROPPED] for line in answer.split("\n")]
    found = tokenize_all(captions)
    different = [rows for rows in zip(captions, found, expected) if rows[1] != rows[2]]
    assert not different, f"{len(different)} of {count} captions differ, first: {different[:5]}"
