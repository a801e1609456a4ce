"""Make the built-in pairs of ``attnviz patch``.

``python -m tests.inspect.interventions.make_pairs`` writes them.

Twenty-four lists of seven words that begin again, and sixteen short texts in which a name comes
back: what followed it the first time follows again. In the corrupt prompt that one word is another.
Every word is one token of the bundled model, so that two prompts differ in one token alone.
"""

import json
import random
from pathlib import Path

import attnviz
from attnviz.models.bundled import Bundled

FILE = Path(attnviz.__file__).parent / "data" / "probes" / "pairs.jsonl"
LISTS, TEXTS, LENGTH, AGAIN = 24, 16, 7, 3

NOUNS = """
apple baby ball basket bear bell bird blood boat book bottle bread bridge brother cake captain
carpet castle chair church city clock cloud coat coffee corn cottage cross doctor door dream
dress dust earth farm father feather field finger fire fish floor flower forest garden gate
giant girl glass gold grass hair hall hand heart hill horse house iron island king kitchen knife
lake lamp letter light milk mill money moon mother mountain mouth music nest night nose palace
paper party pipe pocket pond prince queen rain ring river road rock roof room rose school sheep
ship shop silk silver sister snow song star stone storm story street summer sword table tail
town train tree uncle village voice wall water window wine winter wolf wood
"""
FIRST = """
John Mary Peter Jane Robert Alice George James Margaret Henry Jack Diana Rebecca Sally Jimmy
Daisy Billy Mabel Anne Tommy Paul Philip Martha Nancy Ellen Rose Phyllis Kathleen
"""
LAST = """
Holmes Watson Brown Fisher Harris Wood Carr Barry Hall Armstrong Lamb Green Bunting March Lynde
Fogg Cayley Wilkins
"""
SENTENCES = (
    'When {name} {last} came home, {other} sat by the fire. "Good evening," said {name}',
    "{other} had a letter from {name} {last} that morning, and read it twice. It was long, and "
    "{name}",
    "The old doctor knew {name} {last} well. Every Sunday {other} and {name}",
    'In the garden {other} met {name} {last} and asked the way. "Come with me," answered {name}',
    "Nobody in the village liked {name} {last}, but {other} did. One day {name}",
    "It was late when {name} {last} knocked at the door. {other} opened it, and there stood {name}",
    'My uncle told us of {name} {last} and of the house by the river. "And then," he said, "{name}',
    "{other} and {name} {last} were old friends. Every morning {other} took a basket to {name}",
)


def made(seed=7):
    rng = random.Random(seed)
    for _ in range(LISTS):
        *words, foil = rng.sample(NOUNS.split(), LENGTH + 1)
        other = [*words[:AGAIN], foil, *words[AGAIN + 1 :]]
        again = words[:AGAIN]
        clean, corrupt = " ".join([*words, *again]), " ".join([*other, *again])
        yield {"clean": clean, "corrupt": corrupt, "answer": words[AGAIN], "foil": foil}
    for number in range(TEXTS):
        name, other_name = rng.sample(FIRST.split(), 2)
        answer, foil = rng.sample(LAST.split(), 2)
        sentence = SENTENCES[number % len(SENTENCES)]
        clean, corrupt = (
            sentence.format(name=name, other=other_name, last=last) for last in (answer, foil)
        )
        yield {"clean": clean, "corrupt": corrupt, "answer": answer, "foil": foil}


def written():
    return "".join(json.dumps(pair) + "\n" for pair in made())


if __name__ == "__main__":
    model = Bundled()
    for word in (NOUNS + FIRST + LAST).split():
        if len(model.encode(f" {word}")) != 2:  # with the token that begins a text
            raise SystemExit(f"{word} is no single token")
    FILE.write_text(written(), encoding="utf-8")
