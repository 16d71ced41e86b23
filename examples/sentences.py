"""Real English sentences of mixed length, and files of others."""

from __future__ import annotations

from pathlib import Path

SENTENCES = (
    "The ferry left before sunrise.",
    "Nobody had expected the vote to be so close.",
    "She tuned the violin twice and began to play.",
    "Rain is forecast for the northern valleys tonight.",
    "The old bridge was closed to heavy lorries last spring.",
    "How long does it take to boil an egg at high altitude?",
    "A cat slept on the warm bonnet of the neighbour's car.",
    "Please restart the server after you have changed the certificate.",
    "Our train was late again.",
    "He signed the contract without reading the second page.",
    "The committee will publish its findings before the end of the month.",
    "Although the harvest was poor, the price of wheat barely moved, because merchants had filled "
    "their warehouses during the two wet summers that came before.",
    "Most of the energy a small radio uses is spent on listening, not on sending, so the engineers "
    "let it sleep and wake for a few milliseconds at agreed times.",
    "The museum's new wing, which opened in May after nine years of work and a quarrel about the "
    "colour of its roof, shows the maps that sailors drew of coasts they had only heard about.",
    "When a language has no written form, those who record it must decide which sounds matter; two "
    "people who listen to the same speaker may well write down different letters, and only years "
    "later, when children learn to read from these books, does it become clear which of the two "
    "heard what the speaker meant and which of them heard an accident of the day.",
    "Bread made with little yeast and much time keeps better than bread made in a hurry. The dough "
    "rests overnight in a cool place, the flour takes up the water slowly, and the acids that form "
    "meanwhile strengthen it, so that in the morning it can be folded a few times, shaped without "
    "adding flour, and left alone for an hour while the oven heats. A heavy pot with a lid does "
    "the rest: it holds the steam that the loaf gives off, which keeps the crust soft while the "
    "inside rises, and when the lid comes off for the last quarter of an hour the crust browns.",
)


def read_sentences(path: Path) -> list[str]:
    """The sentences of a UTF-8 text file, one a line; blank lines are left out.

    Raises OSError for a file that cannot be read and ValueError for one without text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: expected UTF-8 text, got other bytes") from None
    sentences = [line.strip() for line in lines if line.strip()]
    if not sentences:
        raise ValueError(f"{path}: expected a sentence a line, got none")
    return sentences
