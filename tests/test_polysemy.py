"""Words with two senses: do the vectors of one sense stand together?

The sentences were written once, before any model had seen them. The biLM is the bundled one, or
that of the pipeline that the environment variable SPACY_ELMO_PIPELINE names.
"""

from __future__ import annotations

import os
import re
from itertools import combinations, product

import numpy
import pytest
import spacy
from spacy.language import Language

from spacy_elmo.extensions import get_layers
from spacy_elmo.tools.neighbors import query_span
from spacy_elmo.weights import bundled_names

BUNDLED = "en_elmo_sm"
# A coin gives ten.
LEAST_HITS = 11

SENSES: dict[str, tuple[list[str], list[str]]] = {
    "bank": (
        [
            "She asked the [bank] for a loan to buy the house.",
            "My salary goes straight to the [bank] every month.",
            "The [bank] charged him a fee for the transfer.",
        ],
        [
            "They sat on the [bank] and watched the boats go by.",
            "The river flooded its left [bank] after the storm.",
            "An old willow grows on the [bank] of the stream.",
        ],
    ),
    "play": (
        [
            "The [play] opened in London to good reviews.",
            "He wrote a [play] about his childhood in Dublin.",
            "We saw a [play] at the theatre last night.",
        ],
        [
            "The children [play] in the garden after school.",
            "Do you want to [play] football with us tomorrow?",
            "They [play] cards every Friday evening.",
        ],
    ),
    "spring": (
        [
            "The trees bloom here in early [spring].",
            "We are getting married next [spring].",
            "After a long winter, [spring] came at last.",
        ],
        [
            "A broken [spring] made the mattress squeak.",
            "The [spring] in the lock is too weak to hold the bolt.",
            "Push the lever until the metal [spring] is fully pressed.",
        ],
    ),
    "match": (
        [
            "Our team won the [match] by two goals.",
            "The tennis [match] lasted almost five hours.",
            "He missed the last [match] because of an injury.",
        ],
        [
            "She struck a [match] and lit the candle.",
            "Do not throw a burning [match] into the bin.",
            "He held the [match] until it burned his fingers.",
        ],
    ),
    "bat": (
        [
            "A [bat] flew out of the cave at dusk.",
            "The [bat] hunts insects in the dark.",
            "We found a small brown [bat] asleep under the roof.",
        ],
        [
            "He swung the [bat] and hit the ball over the fence.",
            "The coach gave each player a wooden [bat].",
            "She broke her [bat] in the first inning.",
        ],
    ),
    "light": (
        [
            "Please turn off the [light] when you leave the room.",
            "The morning [light] came through the curtains.",
            "There was not enough [light] to take a photo.",
        ],
        [
            "The suitcase is [light] enough to carry with one hand.",
            "We only had a [light] lunch before the flight.",
            "This jacket is warm, but very [light].",
        ],
    ),
    "letter": (
        [
            "I got a [letter] from my grandmother this morning.",
            "He signed the [letter] and put it in an envelope.",
            "The company sent her a [letter] about the job.",
        ],
        [
            "The word starts with a capital [letter].",
            "She left out one [letter] when she spelled my name.",
            "The last [letter] of the alphabet is rarely used.",
        ],
    ),
    "ring": (
        [
            "He gave her a gold [ring] with a small diamond.",
            "She took the [ring] off her finger to wash the dishes.",
            "The jeweller made the [ring] smaller for me.",
        ],
        [
            "The two boxers climbed into the [ring].",
            "After ten rounds, only one fighter was standing in the [ring].",
            "The crowd cheered when the champion entered the [ring].",
        ],
    ),
    "rock": (
        [
            "He slipped on a wet [rock] near the shore.",
            "The road was blocked by a huge [rock].",
            "The house is built on solid [rock].",
        ],
        [
            "My brother plays guitar in a [rock] band.",
            "She grew up listening to [rock] on the radio.",
            "The festival has jazz on Friday and [rock] on Saturday.",
        ],
    ),
    "park": (
        [
            "We walked the dog in the [park] before breakfast.",
            "There is a playground in the [park] near our flat.",
            "The [park] closes at sunset in winter.",
        ],
        [
            "You cannot [park] your car in front of the hospital.",
            "It took me half an hour to [park] near the station.",
            "Where did you [park] the van last night?",
        ],
    ),
    "watch": (
        [
            "His father left him an expensive Swiss [watch].",
            "My [watch] is five minutes slow.",
            "She looked at her [watch] and hurried to the train.",
        ],
        [
            "We [watch] the news together every evening.",
            "I did not [watch] the whole film.",
            "Millions of people will [watch] the final on television.",
        ],
    ),
    "plant": (
        [
            "Water the [plant] on the balcony twice a week.",
            "This [plant] has small yellow flowers.",
            "The leaves of the [plant] turned brown in the heat.",
        ],
        [
            "The car [plant] employs three thousand workers.",
            "A fire broke out at the chemical [plant] on Monday.",
            "The company will close its [plant] in Ohio next year.",
        ],
    ),
    "right": (
        [
            "Every citizen has the [right] to vote.",
            "The court said they had no [right] to enter his home.",
            "Women won the [right] to study at the university.",
        ],
        [
            "Turn [right] at the next corner.",
            "He broke his [right] arm when he fell off the bike.",
            "The kitchen is the second door on the [right] side.",
        ],
    ),
    "bear": (
        [
            "A brown [bear] came close to our tent.",
            "The [bear] caught a salmon in the river.",
            "We saw a [bear] and her two cubs in the forest.",
        ],
        [
            "I cannot [bear] the noise any longer.",
            "She could hardly [bear] to look at the wound.",
            "He will have to [bear] the cost of the repairs.",
        ],
    ),
    "fly": (
        [
            "There is a [fly] in my soup.",
            "The spider caught a [fly] in its web.",
            "A [fly] kept landing on the cheese.",
        ],
        [
            "We [fly] to Madrid early tomorrow morning.",
            "Some birds cannot [fly] at all.",
            "The pilot learned to [fly] when he was sixteen.",
        ],
    ),
    "can": (
        [
            "She opened a [can] of beans for dinner.",
            "He threw the empty [can] into the bin.",
            "A [can] of paint fell off the ladder.",
        ],
        [
            "You [can] call me at any time.",
            "I [can] hear the neighbours through the wall.",
            "The shop [can] deliver the sofa on Tuesday.",
        ],
    ),
    "present": (
        [
            "She bought him a birthday [present] in the city.",
            "The best [present] under the tree was a bicycle.",
            "Thank you for the lovely [present] you sent me.",
        ],
        [
            "We should live in the [present] and forget the past.",
            "At [present] there are no free rooms in the hotel.",
            "The novel jumps between the past and the [present].",
        ],
    ),
    "mouse": (
        [
            "The cat chased a [mouse] across the kitchen.",
            "A [mouse] has eaten holes in the bread.",
            "We heard a [mouse] behind the wall at night.",
        ],
        [
            "Click the left button of the [mouse] to open the file.",
            "The keyboard works, but the [mouse] does not.",
            "I bought a wireless [mouse] for my laptop.",
        ],
    ),
    "second": (
        [
            "The runner finished less than a [second] behind the winner.",
            "Light travels a very long way in one [second].",
            "Hold on for a [second] while I find my keys.",
        ],
        [
            "The [second] chapter of the book is much better.",
            "This is her [second] marriage.",
            "Our office is on the [second] floor.",
        ],
    ),
    "board": (
        [
            "The teacher wrote the answer on the [board].",
            "He nailed a wooden [board] over the broken window.",
            "Cut the onions on the [board] next to the sink.",
        ],
        [
            "The [board] voted to replace the chief executive.",
            "She joined the [board] of a large insurance company.",
            "The [board] will meet in March to discuss the budget.",
        ],
    ),
}


def test_sentences_are_well_formed():
    assert len(SENSES) == 20
    for word, senses in SENSES.items():
        assert [len(set(sentences)) for sentences in senses] == [3, 3]
        for sentence in senses[0] + senses[1]:
            # One form of the word: the token encoder has nothing to tell the senses by.
            assert re.findall(r"\[(.*?)\]", sentence) == [word]


def similarity_margin(senses: tuple[numpy.ndarray, numpy.ndarray]) -> float:
    """The mean cosine of pairs of one sense, minus that of pairs of two senses.

    senses (tuple): A vector per sentence, shapes (sentences, width).
    """
    first, second = (array / numpy.linalg.norm(array, axis=1, keepdims=True) for array in senses)
    same = [a @ b for sense in (first, second) for a, b in combinations(sense, 2)]
    cross = [a @ b for a, b in product(first, second)]
    return float(numpy.mean(same) - numpy.mean(cross))


def test_similarity_margin():
    first, second = numpy.array([[1.0, 0], [2, 0], [1, 0]]), numpy.array([[0, 3.0], [0, 1], [0, 1]])
    assert similarity_margin((first, second)) == pytest.approx(1)
    mixed = numpy.array([[1.0, 0], [0, 1], [1, 0]])
    assert similarity_margin((mixed, mixed)) < 0


@pytest.fixture
def nlp() -> Language:
    pipeline = os.environ.get("SPACY_ELMO_PIPELINE")
    if pipeline:
        return spacy.load(pipeline)
    if BUNDLED not in bundled_names():
        pytest.skip(f"no bundled weights {BUNDLED!r}: set SPACY_ELMO_PIPELINE to a pipeline")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"weights": BUNDLED}})
    return nlp


def vector(nlp: Language, sentence: str) -> numpy.ndarray:
    """The mean of the biLSTM layers. The token encoder's layer is left out: it does not know the
    sentence, so it is the same for all, and only brings all cosines nearer to 1."""
    span = query_span(nlp, sentence)
    return get_layers(span.doc)[1:, span.start].mean(axis=0)


def test_vectors_of_one_sense_stand_together(nlp: Language):
    margins = {
        word: similarity_margin(
            tuple(numpy.stack([vector(nlp, text) for text in texts]) for texts in senses)
        )
        for word, senses in SENSES.items()
    }
    for word, margin in margins.items():
        print(f"{word:8} {margin:+.3f} {'hit' if margin > 0 else 'miss'}")
    hits = sum(margin > 0 for margin in margins.values())
    print(f"{hits} of {len(margins)}")
    assert hits >= LEAST_HITS
