"""The one exception that stands for bad input."""


class InputError(Exception):
    """What the user gave cannot be used.

    The message is one sentence for a person: which file, row, column or key, what was found, what was
    expected and how to mend it. The CLI prints it without a traceback and exits with code 2.
    """
