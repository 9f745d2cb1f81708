"""How methods are called and numbers written, the same in every table, text and plot."""


class _Names(dict[str, str]):
    """A method that nobody has named otherwise is called by its name in capitals, as most agents are."""

    def __missing__(self, method: str) -> str:
        return method.upper()


NAMES = _Names(
    {
        "random": "Random",
        "popular": "MostPop",
        "ctr": "CTR",
        "category_popular": "CategoryPop",
        "markov": "Markov",
        "response": "Response",
        "oracle": "Oracle",
        "behaviour": "Behaviour",
        "filter": "Bayes filter",
        "online": "Online",
        "sknn": "SKNN",
        "vsknn": "VSKNN",
        "stan": "STAN",
        "gru": "GRU",
        "gru4rec": "GRU",
        "srgnn": "SRGNN",
        "dqn": "DQN",
        "bcq": "BCQ",
        "qrdqn": "QRDQN",
        "qrbcq": "QRBCQ",
        "iqn": "IQN",
        "bcd4rec": "BCD4Rec",
    }
)


def number(value: float | None, decimals: int = 1) -> str:
    """With a real minus sign; an absent value is a dash."""
    if value is None:
        return "–"
    text = f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")
