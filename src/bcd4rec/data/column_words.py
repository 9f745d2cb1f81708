"""What people call the columns of a log and the values of a response: words, the surest first."""

import re

Words = tuple[str, ...]

ROLES: dict[str, Words] = {
    "session": ("session", "sessionid", "sess", "sid", "visit", "basket", "conversation", "trip", "dialog"),
    "user": (
        *("user", "userid", "uid", "customer", "visitor", "viewer", "reader", "member", "client", "account"),
        *("person", "shopper", "guest", "profile", "cookie", "subscriber", "listener", "player"),
    ),
    "slate": (
        *("slate", "request", "req", "impression", "imp", "rid", "search", "page", "pageview", "query", "list"),
        *("carousel", "screen", "feed", "recommendation", "rec", "batch"),
    ),
    "item": (
        *("item", "itemid", "iid", "sku", "product", "productid", "pid", "article", "asin", "video", "hotel", "movie"),
        *("song", "track", "document", "doc", "content", "news", "offer", "ad", "book", "recipe", "post", "listing"),
        *("restaurant", "game", "course", "job", "story", "clip", "album", "artist", "reference", "arm", "action"),
    ),
    "items": (
        *("items", "shown", "impressions", "results", "displayed", "slate", "candidates", "recommended", "listed"),
        *("list", "products", "articles", "skus", "viewed", "exposed", "ranking", "recommendations"),
    ),
    "clicked": ("clicked", "clicks", "click", "opened", "liked", "chosen", "selected", "selection"),
    "bought": ("bought", "purchased", "purchases", "ordered", "orders", "buys", "booked", "converted", "conversions"),
    "history": ("history", "hist", "previous", "before", "past", "earlier", "reads"),
    "response": (
        *("response", "event", "action", "outcome", "interaction", "feedback", "label", "reaction", "behavior"),
        *("behaviour", "activity", "click", "clicked", "clk", "isclick", "isclicked", "bought", "purchased"),
        *("converted", "conversion", "liked", "like", "reward", "target", "result", "status", "type", "engaged"),
    ),
    "time": (
        *("timestamp", "time", "ts", "datetime", "at", "when", "eventtime", "created", "occurred", "logged", "t"),
        *("ms", "millis", "epoch", "unixtime", "clock", "date", "eventdate", "day"),
    ),
    "step": ("step", "seq", "sequence", "order", "turn", "timeframe", "hit", "page", "event", "number", "nr", "no"),
    "position": ("position", "pos", "rank", "place", "slot", "idx", "index", "placement", "row"),
    "category": (
        *("category", "cat", "categoryid", "department", "genre", "topic", "section", "brand", "class", "city"),
        *("group", "type", "vertical", "subject", "family"),
    ),
    "request_category": (
        *("query", "destination", "keyword", "term", "searchterm", "searchstring", "intent", "context", "search"),
    ),
    "propensity": ("propensity", "pscore", "prob", "probability", "p", "pi", "propensities", "likelihood"),
}
CANONICAL = {
    "session": "session_id",
    "user": "user_id",
    "slate": "request_id",
    "item": "item_id",
    "time": "timestamp",
}
ENDINGS = {"id", "ids", "key", "code", "hash", "uuid", "is", "was", "score", "col", "column"}
NEVER = {"feature", "features", "price", "count", "amount", "url", "title", "name", "text", "age", "country", "agent"}

ANSWERS: dict[str, Words] = {
    "drop": ("crawl", "crawler", "bot", "robot", "error", "heartbeat", "ping", "debug", "unload"),
    "buy": (
        *("buy", "bought", "order", "ordered", "purchase", "purchased", "book", "booked", "booking", "conversion"),
        *("convert", "converted", "transaction", "checkout", "paid", "pay", "sale", "subscribe", "install"),
    ),
    "click": (
        *("click", "clicked", "clk", "clickout", "look", "open", "opened", "tap", "watch", "watched", "wish"),
        *("wishlist", "like", "liked", "cart", "addtocart", "basket", "favourite", "favorite", "save", "saved"),
        *("play", "played", "listen", "detail", "details", "select", "selected", "yes", "y", "true", "1", "complete"),
        *("completed", "share", "engage", "engaged", "accept", "accepted", "read", "follow", "download"),
    ),
    "skip": (
        *("skip", "skipped", "impression", "imp", "shown", "show", "display", "displayed", "pass", "passed", "swipe"),
        *("swiped", "none", "no", "n", "false", "0", "ignore", "ignored", "seen", "expose", "exposed", "dismiss"),
        *("dismissed", "dislike", "reject", "rejected", "noclick", "nothing", "scroll", "served", "listed"),
    ),
}
SEEN = ("view", "viewed", "pageview")  # shown where slates are logged, looked at by one's own will where they are not
ORGANIC = ("search", "searched", "read", "direct", "organic", "visit", "query")  # where clicks have their own word
NUMBERS = {"0": "skip", "1": "click", "2": "buy"}


def tokens(name: str) -> list[str]:
    """`isClicked`, `is_clicked` and `is.clicked` are the same words."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word]


def name_score(role: str, name: str) -> float:
    """How well a column's name says that it has this role: 0 for not at all, 100 for a canonical name."""
    if name == CANONICAL.get(role, role):
        return 100.0
    words = tokens(name)
    core = [word for word in words if word not in ENDINGS] or words
    if NEVER & set(words):
        return 0.0
    known = ROLES[role]
    whole = next((known.index(one) for one in ("".join(words), "".join(core)) if one in known), None)
    if whole is not None:
        return 10 - 0.1 * whole
    parts = [known.index(word) for word in core if word in known]
    return 5 - 0.1 * min(parts) if parts else 0.0


def answer_of(value: str) -> str | None:
    """skip, click, buy or drop, as the value's own words say; None where they say nothing."""
    words = tokens(value)
    if not words:
        return None
    if words[0] in ("no", "not", "non") and len(words) > 1:
        return "skip"
    candidates = ["".join(words), *words]
    return next((answer for answer, known in ANSWERS.items() if any(one in known for one in candidates)), None)
