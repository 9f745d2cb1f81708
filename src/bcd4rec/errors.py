"""The one exception that stands for bad input."""

import unicodedata

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, formats, lone surrogates, line ends: terminals may obey them


class InputError(Exception):
    """What the user gave cannot be used.

    The message is one sentence for a person: which file, row, column or key, what was found, what was
    expected and how to mend it. The CLI prints it without a traceback and exits with code 2.
    """


class CheckpointError(InputError):
    """Training cannot go on from a checkpoint: it is of another run, or cut short."""


def printable(text: str, keep: str = "") -> str:
    """What others wrote, such as names of columns, as text that no terminal obeys; `keep` may stay as it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if letter in keep or unicodedata.category(letter) not in UNSEEN else ascii(letter)[1:-1]
        for letter in text
    )
