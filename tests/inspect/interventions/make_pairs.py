"""Make the built-in pairs of ``attnviz patch``.

``python -m tests.inspect.interventions.make_pairs`` writes them.

Twenty-four lists of seven words that begin again, and sixteen short texts in which a name comes
back: what followed it the first time follows again. In the corrupt prompt that one word is another.
Every word is one token of the bundled model, so that two prompts differ in one token alone.
"""

import json
import random
from pathlib import Path

import yaml

import attnviz
from attnviz.models.bundled import Bundled

FILE = Path(attnviz.__file__).parent / "data" / "probes" / "pairs.jsonl"
LISTS, TEXTS, LENGTH, AGAIN = 24, 16, 7, 3

_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
NOUNS, FIRST, LAST = (_WORDS[kind].split() for kind in ("nouns", "first", "last"))
SENTENCES = _WORDS["sentences"]


def made(seed=7):
    rng = random.Random(seed)
    for _ in range(LISTS):
        *words, foil = rng.sample(NOUNS, LENGTH + 1)
        other = [*words[:AGAIN], foil, *words[AGAIN + 1 :]]
        again = words[:AGAIN]
        clean, corrupt = " ".join([*words, *again]), " ".join([*other, *again])
        yield {"clean": clean, "corrupt": corrupt, "answer": words[AGAIN], "foil": foil}
    for number in range(TEXTS):
        name, other_name = rng.sample(FIRST, 2)
        answer, foil = rng.sample(LAST, 2)
        sentence = SENTENCES[number % len(SENTENCES)]
        clean, corrupt = (
            sentence.format(name=name, other=other_name, last=last) for last in (answer, foil)
        )
        yield {"clean": clean, "corrupt": corrupt, "answer": answer, "foil": foil}


def written():
    return "".join(json.dumps(pair) + "\n" for pair in made())


if __name__ == "__main__":
    model = Bundled()
    for word in NOUNS + FIRST + LAST:
        if len(model.encode(f" {word}")) != 2:  # with the token that begins a text
            raise SystemExit(f"{word} is no single token")
    FILE.write_text(written(), encoding="utf-8")
