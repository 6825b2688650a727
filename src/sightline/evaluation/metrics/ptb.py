"""Penn Treebank tokens as the COCO caption tools give them: lower case, punctuation dropped, without Java.

The rules were found by giving the tools' tokeniser captions and probes. A rule is a pattern and a way to spell its
token. At each position of a text the rule with the longest match wins and, of equals, the earlier one. A rule with a
group makes a token of the group alone; what it matches beyond is context, and the next token starts there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple


class Rule(NamedTuple):
    """What a token looks like and how it is spelt."""

    pattern: str
    spelling: Callable[[str], str]


def _ranges(codes: Iterable[int]) -> str:
    """Characters as the inside of a pattern's square brackets."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in runs)


# Characters. The tools see sixteen bits of each: letters and emoji beyond belong to no token.
_KINDS = [unicodedata.category(chr(code)) for code in range(0x10000)]
LETTER = _ranges(code for code, kind in enumerate(_KINDS) if kind[0] == "L")
DIGIT = _ranges(code for code, kind in enumerate(_KINDS) if kind == "Nd")
# Accents and vowel signs that are characters of their own, up to Lao, are letters of a word but not of "5th".
_MARK = _ranges(code for code in range(0x2C2, 0xECE) if _KINDS[code] in ("Mn", "Mc", "Sk"))
# Symbols that are tokens; any other, such as the rupee's, only separates.
_SYMBOL = (
    r"$%&*+/;<=>\\^|~@#_¡¥-©¬®-´¶-¹¿×÷\u037e\u0387։־׀׃׆׳״؀-؃؆-،ؔ؛؞؟٪٭۔܀-܍߶-߸।॥฿๏᾽‖‗‚„-‣‰-‸※‾-⁂⁄⁰⁴-⁾₀-₎₤"
    r"℀℁℃-℆℈℉℔№-℘℞-℣℥℧℩℮℺℻⅀-⅄⅊-⅍⅏⅕-⅞←-⯿、。〒・！-／：-＠［-｀｛-･￠￡￥￦"
)
_SPELT_SYMBOLS = {
    symbol: spelling
    for spelling, symbols in (
        *(("-lrb-", "("), ("-rrb-", ")"), ("-lsb-", "["), ("-rsb-", "]"), ("-lcb-", "{"), ("-rcb-", "}")),
        *(("$", "\x80¤₠€"), ("#", "£"), ("cents", "¢")),
        *(("1/4", "¼"), ("1/2", "½"), ("3/4", "¾"), ("1/3", "⅓"), ("2/3", "⅔")),
        *(("`", "‘‛‹\x91"), ("'", "’›\x92"), ("``", "“«\x93"), ("''", '”»\x94"')),
        *(("...", "…\x85"), ("--", "–—―\x96\x97")),
    )
    for symbol in symbols
}
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&apos;": "'", "&quot;": "''"} | dict.fromkeys(
    ["&mdash;", "&ndash;", "&nbsp;"], "--"
)
_ACCENTED = "&[AEIOUaeiou](?:acute|grave|uml);"
_QUOTE = "`‘’“”«»‛‹›\x91-\x94"
_APOSTROPHE = "(?:['’\x92]|(?ai:&apos;))"
_ANY_APOSTROPHE = "(?:['’`‘‛\x91\x92]|(?ai:&apos;))"

# Words, numbers and what they compose.
_WORD = f"(?:[{LETTER}{_MARK}]|{_ACCENTED})(?:[{LETTER}{_MARK}{DIGIT}]|{_ACCENTED})*"
_ALNUM = f"(?:[{LETTER}{DIGIT}]|{_ACCENTED})+"
_NUMBER = f"(?:[{DIGIT}]*(?:[.:,٫٬][{DIGIT}]+)+|[{DIGIT}]+)"
_INITIALS = r"[A-Za-z](?:\.[A-Za-z])+"
_DOTTED = f"{_WORD}(?:[.!?]{_WORD})+"
_CAPITALS = "[A-Z]+(?:(?:&(?ai:amp;)?|[+])[A-Z]+)+"
_NOT = f"(?ai:n{_ANY_APOSTROPHE}t)"
_ENDING = f"{_APOSTROPHE}(?ai:[msd]|ll|re|ve)"
# Names: d'Artagnan and O'Neil, any other lone letter's (G'day), and those with a vowel before the apostrophe (Hawai'i).
_NAME = f"[DLOdlo]{_ANY_APOSTROPHE}[{LETTER}{DIGIT}]{{2,}}"
_OTHER_NAME = f"[A-HJ-XZn]{_ANY_APOSTROPHE}[{LETTER}]{{2,}}"
_VOWEL_NAME = f"[{LETTER}]+[AEIOUYaeiouy]{_ANY_APOSTROPHE}[aeiouA-Z][{LETTER}]*"
# Compounds: "well-known" and "snake_case"; of plain letters also "5.5-inch" and "non-U.S."; at most three with slashes.
_COMPOUND = f"(?:{_NAME}|{_ALNUM})(?:[-_֊‐‑](?:{_NAME}|{_ALNUM}))+"
_LOOSE_COMPOUND = rf"[A-Za-z0-9][A-Za-z0-9.,]*(?:-(?:{_INITIALS}\.|[A-Za-z0-9]+))+"
_SLASHED_PART = "[A-Za-z0-9]+(?:-[A-Za-z]+)*"
_SLASHED = rf"{_SLASHED_PART}(?:\\?/{_SLASHED_PART}){{1,2}}"
_FRACTION = r"(?:[0-9]{1,4}[- \xa0])?[0-9]{1,4}(?:\\?/|⁄)[0-9]{1,4}"
_DATE = "[0-9]{1,2}[-/][0-9]{1,2}[-/][0-9]{2,4}"
_PHONE = r"(?:\([0-9]{2,3}\)[ \xa0]?|\+?(?:[0-9]{2,4}[- \xa0])?[0-9]{2,4}[- \xa0])[0-9]{3,4}[- \xa0]?[0-9]{3,5}"
_APOSTROPHE_WORDS = "cap'n|c'est|c'mon|dunkin'|e'er|ev'ry|li'l|nat'l|nor'easter|ol'|s'mores|somethin'".replace(
    "'", _APOSTROPHE
)

# Abbreviations keep their full stop: those that can end a sentence, titles and the like, and those before a number.
_FINAL_ABBREVIATION = (
    r"(?:(?ai:al|ala|apr|ariz|assn|assoc|aug|bhd|bldg|blvd|bros|calif|co|colo|conn|corp|cos|ct|dak|dec|esq|est|etc|ext|feb"
    r"|fla|fri|ga|inc|ind|intl|jan|jr|jul|jun|kan|kans|ky|ltd|mar|md|mich|minn|mo|mon|mont|neb|nev|nov|oct|okla|penn|plc"
    r"|rd|rt|sep|sept|seq|sq|sr|sys|tel|tenn|thu|thurs|tue|tues|univ|va|vt|wed|wis|wisc|wyo)"
    r"|A(?ai:rk|z)|D(?ai:el)|I(?ai:ll)|L(?ai:a)|M(?ai:ass|iss)|O(?ai:re)|P(?ai:a)|T(?ai:ex)|W(?ai:ash)|[Pp]p?t[ey]s?"
    r"|Ph\.D|Ed\.D)\."
)
_ABBREVIATION = (
    r"(?:(?ai:adj|adm|adv|alex|asst|attys?|ave|brig|capt|cf|cie|cmdr|col|comdr|cpl|dept|det|drs?|elec|ens|ft|gen|govs?|hon"
    r"|insp|invt|jos|lieut|lt|maj|messrs|mlle|mme|mrs?|ms|msgr|mt|natl|pfc|ph|pres|profs?|pvt|reps?|rev|sens?|sfc|sgt|spc"
    r"|ste?|supts?|treas|vs|wm)|[Mm][ft]g)\."
)
NUMBERED = "(?ai:art|ca|figs?|nos?|op|pp|prop)"
# A lone letter's full stop ends the sentence if one of these follows.
_STARTER = (
    "A|(?:A(?ai:bout|ccording|dditionally|fter|n|s|t)|B(?ai:ut)|E(?ai:arlier)|H(?ai:e|er|ere|owever)|I(?ai:f|n|t)|L(?ai:ast)"
    r"|M(?ai:any|ore|r\.|s\.)|N(?ai:ow)|O(?ai:nce|ne|ther|ur)|S(?ai:he|ince|o|ome|uch)"
    "|T(?ai:hat|he|heir|hen|here|hese|hey|his)|W(?ai:e|hat|hen|hile)|Y(?ai:et|ou))"
)
_BLANK = "[ \t\xa0\u2000-\u200a\u3000]"
_FILE = (
    f"({_ALNUM}(?:[.]{_ALNUM})*[.](?ai:bat|bmp|c|cgi|class|cpp|dll|docx?|exe|gif|gz|h|html?|jar|java|jpe?g|mov|mp3|pdf"
    r"|php|pl|png|ppt|ps|py|sql|tar|txt|wav|x|xml|zip))[\s.,!?]"
)

# Addresses, tags and faces.
_IN_ADDRESS = r'[^ \t\n"<>|(){}]'
_END_OF_ADDRESS = r'[^ \t\n"<>|().!?,{}-]'
_PATH = rf'(?:/[^ \t\n"<>|()]+{_END_OF_ADDRESS})?'
_IN_DOMAIN = r'[^ \t\n"<>|(){}.\xa0]'
_HOST = r"""[^ \t\n"$'(),\-./0-9:;<=>!?A-Z\[\\\]^_`{|}@][^ \t\n"$'(),\-./0-9:;<=>!?A-Z\[\\\]^_`{|}]*\."""
_ADDRESSES = [
    f"(?ai:https?)://{_IN_ADDRESS}+{_END_OF_ADDRESS}",
    rf'(?ai:www)\.(?:[^ \t\n"<>|().!?,{{}}]+\.)+[A-Za-z@]{{2,4}}{_PATH}',
    f"(?:{_HOST})+(?ai:com|net|org|edu){_PATH}",
    rf'<?[A-Za-z0-9][^ \t\n"<>|(){{}}\xa0]*@(?:{_IN_DOMAIN}+\.)*{_IN_DOMAIN}+>?',
]
_TAG_NAME = "[A-Za-z][A-Za-z0-9.:_-]*"
_TAG = (
    rf"</{_TAG_NAME}{_BLANK}*>|<[!?][A-Za-z-][^>\n]*>"
    rf"|<{_TAG_NAME}(?:{_BLANK}+{_TAG_NAME}(?:{_BLANK}*={_BLANK}*(?:\"[^\"\n]*\"|'[^'\n]*'))?)*{_BLANK}*/?{_BLANK}*>"
)
_SMILEY = r"([<>]?[:;=][-o*']?[O()\[\]{|\\DPpd@])[^A-Za-z0-9]"
_FACE = rf"[Oo]{_ANY_APOSTROPHE}[Oo]|[-x=^'<>~]_[-x=^'<>~]|\([-x=^'<>~][_.-]?[-x=^'<>~]\)"


def _as_written(token: str) -> str:
    return token


def _in_one_piece(token: str) -> str:
    return token.replace(" ", "\xa0").replace("(", "-lrb-").replace(")", "-rrb-")


def _symbols(token: str) -> str:
    return "".join(_SPELT_SYMBOLS.get(symbol, symbol) for symbol in token)


def _entity(token: str) -> str:
    if token.lower() in ("&apos;", "&quot;") and not token.islower():  # quotes in small letters only
        return token
    return _ENTITIES.get(token.lower(), token)


def _contraction(token: str) -> str:
    return _symbols(token.replace("&apos;", "'"))


def _capitals(token: str) -> str:
    return re.sub("(?i)&amp;", "&", token)


def _rules(*patterns: str, spelling: Callable[[str], str] = _as_written) -> list[Rule]:
    return [Rule(pattern, spelling) for pattern in patterns]


_FACES = _rules(_SMILEY, _FACE, spelling=_in_one_piece)

STARTING_WITH_LETTER = [
    # Contractions are split: the stem is a token before "'s", "n't" and within "cannot".
    *_rules(f"({_DOTTED}|{_WORD}){_ENDING}", "(?ai:(can)not|(gon|wan)na|(got)ta|(lem|gim)me)"),
    *_rules(f"([A-Za-z]*[A-MO-Za-mo-z]){_NOT}"),
    *_rules(_NOT, spelling=_contraction),
    *_rules(_WORD, _COMPOUND, _DOTTED, *_ADDRESSES),
    *_rules(rf"([A-Za-z])\.(?=\s)(?:{_BLANK}*\n){{0,2}}{_BLANK}*(?:{_STARTER}|{_TAG})\s", r"[A-Za-z]\."),
    # "etc.a" is two tokens and "Mr.a" one: two characters of context make the former outreach a dotted word.
    *_rules(rf"({_FINAL_ABBREVIATION})[\s\S]{{1,2}}", _FINAL_ABBREVIATION, _ABBREVIATION),
    *_rules(rf"({NUMBERED}\.)[ \n]?[{DIGIT}]"),
    *_rules(rf"{_INITIALS}\.", _NAME, _OTHER_NAME, _VOWEL_NAME, _LOOSE_COMPOUND, _SLASHED),
    # Before more punctuation a full stop belongs to the word: "word.," but not "word.".
    *_rules(rf"((?:{_COMPOUND}|{_DOTTED}|{_WORD}|{_CAPITALS}|{_NAME}|{_LOOSE_COMPOUND})\.)[,;:]", spelling=_capitals),
    *_rules(_CAPITALS, spelling=_capitals),
    *_rules(r"[A-Z]+\$", r"[Cc]\+\+|[CFcf]#", "(?ai:s&p-500|s&ls|pro-|anti-)", _FILE),
    *_rules(f"[DJLdjl]{_APOSTROPHE}", f"([Yy]{_APOSTROPHE})[{LETTER}]", f"(?ai:{_APOSTROPHE_WORDS})"),
    *_FACES,
]
STARTING_WITH_DIGIT = [
    *_rules(_NUMBER, _ALNUM, _COMPOUND, _LOOSE_COMPOUND, _SLASHED, _DATE),
    *_rules(_FRACTION, _PHONE, spelling=_in_one_piece),
    *_rules(rf"((?:{_COMPOUND}|{_ALNUM}|{_LOOSE_COMPOUND})\.)[,;:]", _FILE),
    *_rules(*_ADDRESSES),
]
STARTING_OTHERWISE = [
    *_rules(_TAG, spelling=_in_one_piece),
    *_rules("(?ai:-[lr][rcs]b-)"),
    # A straight apostrophe before more letters opens a quotation; a curly one does not.
    *_rules(f"'(?ai:[msd]|ll|re|ve)(?![A-Za-z])|(?!'){_ENDING}", spelling=_contraction),
    *_rules(r"('[Nn])\s", f"(?!'){_APOSTROPHE}[Nn]", f"{_APOSTROPHE}[Nn]{_APOSTROPHE}", "(?ai:('t)(?:is|was))"),
    *_rules(f"{_APOSTROPHE}(?ai:em|till?|cause)", f"{_APOSTROPHE}[{DIGIT}]0s", rf"({_APOSTROPHE}[{DIGIT}]{{2}})\s"),
    *_rules(f"[-+]?{_NUMBER}", _WORD, _COMPOUND, _DOTTED),
    *_rules(_PHONE, spelling=_in_one_piece),
    *_FACES,
    *_rules(f"#[{LETTER}]+", "@[A-Za-z_][A-Za-z0-9_]*"),
    *_rules("(?ai:&(?:amp|apos|quot|lt|gt|mdash|ndash|nbsp);)|&#[0-9]+;", spelling=_entity),
    *_rules(r"[!?]+|#+|@+|_+|\*+|[²³¹⁰⁴-⁾₀-₎]+|<<|>>|\\\*|''|-{5,}"),
    *_rules(r"-{2,4}", spelling=lambda _: "--"),
    *_rules(r"\. \. \.|\.{3,5}", spelling=lambda _: "..."),
    # Two curly quotes are one token, which no list of punctuation has unless they are alike and single.
    *_rules(f"[{_QUOTE}]{{1,2}}", r"['\",:.(){}\[\]…–—―\x85\x96\x97\x80¢£¤₠€¼½¾⅓⅔-]", spelling=_symbols),
    *_rules(f"[{_SYMBOL}]"),
    *_rules(*_ADDRESSES),
]


# Brackets become -lrb- and the like before the tools look for "-LRB-", so they stay; so does "!!".
_DROPPED = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
_LINE_BREAKS = re.compile("[\r\n\u000b\u000c\u2028\u2029]")
# Between spaces, what consists of these characters has the same tokens in every caption, unless it ends in the full
# stop of a lone letter or of an abbreviation such as "no.", which depends on the word after.
_ALONE = re.compile("[A-Za-z.,!?'\"&/-]*")
_OPEN_END = re.compile(rf"(?:[a-z]|{NUMBERED})\.")
_SOFT_HYPHEN = "\xad"  # no part of a word
_Matchers = list[tuple[Callable[[str, int], re.Match[str] | None], Callable[[str], str]]]


def tokenize(text: str) -> list[str]:
    """The words of a caption as the metrics count them."""
    return tokenize_all([text])[0]


def tokenize_all(texts: Sequence[str]) -> list[list[str]]:
    """The words of each caption, read in this order as one text with a caption per line.

    The order can matter, since the COCO tools' tokeniser glances at the next line: "vitamin K." ends in the word "k"
    if "The dog" follows and in the abbreviation "k." if "Dogs" follows.
    """
    lines = [_LINE_BREAKS.sub(" ", text).replace(_SOFT_HYPHEN, "") for text in texts]
    tokenized = []
    for number, line in enumerate(lines):
        following = "".join("\n" + after for after in lines[number + 1 : number + 4])
        tokenized.append([token for token in lex(line, following) if token not in _DROPPED])
    return tokenized


def lex(line: str, following: str = "") -> Iterator[str]:
    """Every token of a line, punctuation included, given the text after it."""
    text = line + following
    position = 0
    while position < len(line):
        end = line.find(" ", position)
        end = len(line) if end < 0 else end
        part = line[position:end]
        known = _tokens_alone(part)
        if known is not None:
            yield from known
            position = end + 1
            continue
        while position < end:  # a token such as a telephone number can end in a later part
            token, position = _next_token(text, position)
            if token:
                yield token


@lru_cache(maxsize=1 << 16)
def _tokens_alone(part: str) -> tuple[str, ...] | None:
    """The tokens of what stands between two spaces, or None if they depend on what stands around it."""
    if _ALONE.fullmatch(part) is None:
        return None
    tokens: list[str] = []
    position = 0
    while position < len(part):
        token, position = _next_token(part + "\n", position)
        tokens.append(token)
    last = "".join(tokens[-2:] if tokens[-1:] == ["."] else tokens[-1:])
    return None if _OPEN_END.fullmatch(last) else tuple(tokens)


def _next_token(text: str, position: int) -> tuple[str, int]:
    """The token at a position and the position after it; a character without a rule only separates tokens."""
    matches = [
        (found, spelling) for matching, spelling in _rules_at(text[position]) if (found := matching(text, position))
    ]
    if not matches:
        return "", position + 1
    found, spelling = max(matches, key=lambda match: match[0].end())  # the first of the longest
    group = found.lastindex or 0
    return spelling(found[group]).lower(), found.end(group)


@lru_cache(maxsize=1 << 10)
def _rules_at(character: str) -> _Matchers:
    """The rules of tokens that can start with a character."""
    if re.match(f"[{LETTER}]", character):
        return _compiled("letter")
    return _compiled("digit" if re.match(f"[{DIGIT}]", character) else "other")


@cache
def _compiled(start: str) -> _Matchers:
    """The rules ready to match: compiled at the first use, since the classes of letters take a while."""
    rules = {"letter": STARTING_WITH_LETTER, "digit": STARTING_WITH_DIGIT, "other": STARTING_OTHERWISE}[start]
    return [(re.compile(rule.pattern).match, rule.spelling) for rule in rules]
