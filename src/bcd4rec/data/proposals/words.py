"""What people call the columns of a log and the values of a response: words, the surest first."""

import re
import unicodedata

Words = tuple[str, ...]

ROLES: dict[str, Words] = {
    "session": (
        *("session", "sessionid", "sess", "sid", "visit", "basket", "conversation", "trip", "dialog"),
        *("orderid", "cartid", "basketid", "ticketid", "receiptid", "invoiceid", "transactionid", "playlist"),
        *(
            "sitzung",
            "besuch",
            "visite",
            "sesion",
            "visita",
            "sessione",
            "sessao",
            "セッション",
            "セッションid",
            "会话",
            "会話",
        ),
    ),
    "user": (
        *("user", "userid", "uid", "customer", "visitor", "viewer", "reader", "member", "client", "account"),
        *("person", "shopper", "guest", "profile", "cookie", "subscriber", "listener", "player", "device"),
        *("reviewer", "household", "student", "learner", "patient", "passenger", "anonymous", "fullvisitor"),
        *("recipient", "candidate", "applicant", "buyer", "swiper", "rater", "author", "msno"),
        *("nutzer", "benutzer", "kunde", "kundennummer", "besucher", "leser", "utilisateur", "client", "visiteur"),
        *("usuario", "cliente", "utente", "ユーザー", "ユーザ", "ユーザーid", "会員", "顧客", "用户", "用户id"),
    ),
    "slate": (
        *("slate", "request", "req", "impression", "imp", "rid", "search", "page", "pageview", "query", "list"),
        *("carousel", "screen", "feed", "recommendation", "rec", "batch", "display", "srch", "serp", "widget"),
        *("mail", "email"),
        *(
            "anfrage",
            "seite",
            "seitenaufruf",
            "suche",
            "liste",
            "requete",
            "consulta",
            "peticion",
            "リクエスト",
            "ページ",
        ),
    ),
    "item": (
        *("item", "itemid", "iid", "sku", "product", "productid", "pid", "article", "asin", "video", "hotel", "movie"),
        *("song", "track", "document", "doc", "content", "news", "offer", "ad", "book", "recipe", "post", "listing"),
        *("restaurant", "game", "course", "job", "story", "clip", "album", "artist", "reference", "arm", "action"),
        *("aid", "vid", "mid", "banner", "creative", "adgroup", "campaign", "variant", "coupon", "deal"),
        *("prop", "accommodation", "ean", "gtin", "upc", "isbn", "style", "merchant", "venue", "poi"),
        *("episode", "podcast", "programme", "program", "channel", "question", "exercise", "puzzle", "wine", "beer"),
        *("lesson", "image", "photo", "pin", "tweet", "app", "tile", "card", "menu", "dish", "drug"),
        *("artikel", "artikelnummer", "artikelnr", "produkt", "produktnummer", "ware", "angebot", "beitrag", "produit"),
        *(
            "producto",
            "articulo",
            "prodotto",
            "produto",
            "商品",
            "商品id",
            "アイテム",
            "記事",
            "動画",
            "物品",
            "商品番号",
        ),
    ),
    "items": (
        *("items", "shown", "impressions", "results", "displayed", "slate", "candidates", "recommended", "listed"),
        *("list", "products", "articles", "skus", "viewed", "exposed", "ranking", "recommendations", "inview"),
        *("result", "recommendation", "rec", "choice", "option", "candidate"),
        *("angezeigt", "gezeigt", "artikelliste", "affiches", "mostrados", "表示"),
    ),
    "clicked": (
        *("clicked", "clicks", "click", "clk", "clickout", "opened", "tapped", "liked", "chosen", "selected"),
        *("selection", "watched", "played", "read", "interacted", "engaged", "completed", "finished", "started"),
        *("geklickt", "klicks", "cliques", "clics", "クリック"),
    ),
    "bought": (
        *("bought", "purchased", "purchases", "ordered", "orders", "buys", "booked", "converted", "conversions"),
        *("purchase", "buy", "order", "booking", "conversion", "sale", "sold", "transaction", "paid", "subscribed"),
        *("gekauft", "bestellt", "achetes", "comprados", "購入"),
    ),
    "history": ("history", "hist", "previous", "before", "past", "earlier", "reads"),
    "response": (
        *("response", "event", "action", "outcome", "interaction", "feedback", "label", "reaction", "behavior"),
        *("behaviour", "activity", "click", "clicked", "clk", "isclick", "isclicked", "bought", "purchased"),
        *("converted", "conversion", "liked", "like", "reward", "target", "result", "status", "type", "engaged"),
        *("ev", "evt", "verb", "direction", "decision"),
        *("opened", "open", "tapped", "redeemed", "accepted", "installed", "booked", "played", "watched", "read"),
        *("completed", "finished", "favorited", "saved", "shared", "subscribed", "responded", "success", "selected"),
        *("ereignis", "aktion", "reaktion", "antwort", "klick", "geklickt", "gekauft", "evenement", "reponse", "clic"),
        *("evento", "accion", "respuesta", "risposta", "反応", "イベント", "行動", "クリック", "行为", "事件"),
    ),
    "time": (
        *("timestamp", "time", "ts", "datetime", "at", "when", "eventtime", "created", "occurred", "logged", "t"),
        *("ms", "millis", "epoch", "unixtime", "clock", "date", "eventdate", "day"),
        *("zeitstempel", "zeitpunkt", "zeit", "uhrzeit", "datum", "horodatage", "heure", "fecha", "hora", "data"),
        *("日時", "時刻", "時間", "日付", "タイムスタンプ", "时间", "日期"),
    ),
    "step": ("step", "seq", "sequence", "order", "turn", "timeframe", "hit", "page", "event", "number", "nr", "no"),
    "position": (
        *("position", "pos", "rank", "rk", "place", "slot", "idx", "index", "placement", "row"),
        *("platz", "rang", "stelle", "posicion", "lugar", "posizione", "位置", "順位", "表示位置"),
    ),
    "category": (
        *("category", "cat", "categoryid", "department", "dept", "genre", "topic", "section", "brand", "class", "city"),
        *("group", "type", "vertical", "subject", "family", "warengruppe", "kategorie", "abteilung", "rubrik", "thema"),
        *("categorie", "rubrique", "categoria", "カテゴリ", "カテゴリー", "分類", "类别"),
    ),
    "request_category": (
        *("query", "destination", "keyword", "term", "searchterm", "searchstring", "intent", "context", "search"),
    ),
    "propensity": ("propensity", "pscore", "prob", "probability", "p", "pi", "propensities", "likelihood"),
}
RATING = {"rating", "ratings", "stars", "grade", "bewertung", "sterne", "評価", "overall", "score"}
DWELL = {"dwell", "watch", "watchtime", "seconds", "duration", "playtime", "listened", "verweildauer", "readtime"}
CANONICAL = {
    "session": "session_id",
    "user": "user_id",
    "slate": "request_id",
    "item": "item_id",
    "time": "timestamp",
}
KNOWN = {word for words in ROLES.values() for word in words}
ENDINGS = {"id", "ids", "key", "code", "hash", "uuid", "guid", "is", "was", "has", "score", "col", "column", "bool"}
ENDINGS |= {"flag", "yn", "ind", "clean", "nr"}
NEVER = {"feature", "features", "price", "count", "amount", "url", "title", "name", "text", "age", "country", "agent"}
NEVER |= {"length", "size", "total", "usd", "eur", "gross", "revenue", "version", "ratio", "vector", "embedding"}
PREPOSITIONS = {"in", "of", "within", "per", "for"}  # what stands before them is what a column is
WHOLE, HEAD, PART = 10.0, 6.0, 3.0  # scores of a name that is a word, ends with it, has it inside
NEGATIONS = {"not", "no", "non", "un", "never"}
AGAINST = {"skip", "skipped", "skips", "dismissed", "dismiss", "hidden", "hide", "hate", "disliked", "dislike"}
AGAINST |= {"ignored", "rejected", "bounced", "bounce", "unliked"}

ANSWERS: dict[str, Words] = {
    "drop": (
        *("crawl", "crawler", "bot", "robot", "error", "heartbeat", "ping", "debug", "unload", "remove", "removed"),
        *("removefromcart", "delete", "deleted", "refund", "refunded", "cancel", "cancelled", "canceled", "logout"),
    ),
    "buy": (
        *("buy", "bought", "order", "ordered", "purchase", "purchased", "book", "booked", "booking", "conversion"),
        *("convert", "converted", "transaction", "checkout", "paid", "pay", "sale", "subscribe", "install", "apply"),
        *("applied", "application", "signup", "reserve", "reserved", "donate", "donated", "cnv", "conv"),
        *("kauf", "gekauft", "bestellung", "bestellt", "gebucht", "achat", "achete", "commande", "compra", "comprado"),
        *("pedido", "acquisto", "購入", "注文", "予約", "购买"),
    ),
    "click": (
        *("click", "clicked", "clk", "clickout", "look", "open", "opened", "tap", "watch", "watched", "wish"),
        *("wishlist", "like", "liked", "cart", "addtocart", "basket", "favourite", "favorite", "save", "saved"),
        *("play", "played", "listen", "detail", "details", "select", "selected", "yes", "y", "true", "1", "complete"),
        *("completed", "share", "engage", "engaged", "accept", "accepted", "read", "follow", "download", "fav"),
        *("add", "added", "bookmark", "bookmarked", "tapped", "press", "pressed", "choose", "chosen", "upvote"),
        *("superlike", "loved", "love"),
        *("klick", "geklickt", "ja", "warenkorb", "merkliste", "angesehen", "clic", "clique", "oui", "panier"),
        *("clicado", "si", "carrito", "クリック", "はい", "カート", "いいね", "点击"),
    ),
    "skip": (
        *("skip", "skipped", "impression", "imp", "shown", "show", "display", "displayed", "pass", "passed", "swipe"),
        *("swiped", "none", "no", "n", "false", "0", "ignore", "ignored", "seen", "expose", "exposed", "dismiss"),
        *("dismissed", "dislike", "reject", "rejected", "noclick", "nothing", "scroll", "served", "listed", "hide"),
        *("delivered", "sent", "printed", "rendered", "recommended", "downvote", "abandoned", "exposure", "viewport"),
        *("angezeigt", "gezeigt", "anzeige", "nein", "nichts", "ignoriert", "affiche", "vu", "non", "rien", "mostrado"),
        *("visto", "nada", "表示", "なし", "いいえ", "曝光"),
    ),
}
# Shown where slates are logged, looked at by one's own will otherwise:
SEEN = ("view", "viewed", "views", "pageview", "pv", "vista", "vue", "ansicht", "aufruf", "閲覧", "浏览")
LISTS = {"list", "lists", "results", "promotion", "carousel", "impressions"}  # which are seen and not looked at
ORGANIC = ("search", "searched", "read", "direct", "organic", "visit", "query")  # where clicks have their own word
NUMBERS = {"0": "skip", "1": "click", "2": "buy"}


def tokens(name: str) -> list[str]:
    """`isClicked`, `is_clicked` and `is.clicked` are the same words, `Requête` is `requete`; of any alphabet."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    marked = unicodedata.normalize("NFKD", apart.casefold())
    plain = "".join(one for one in marked if not "\u0300" <= one <= "\u036f")  # accents; voiced kana keep their marks
    return [word for word in re.split(r"[\W_]+", unicodedata.normalize("NFKC", plain)) if word]


def name_score(role: str, name: str) -> float:
    """How well a column's name says that it has this role: 0 for not at all, 100 for a canonical name.

    A name's last word is what it is: `list_position` is a position, `user_session` a session.
    """
    if name == CANONICAL.get(role, role):
        return 100.0
    words = tokens(name)
    if (NEVER - ({"name"} if role == "response" else set())) & set(words):
        return 0.0
    core = _core(words)
    known = ROLES[role]
    whole = next((known.index(one) for one in ("".join(words), "".join(core)) if one in known), None)
    if whole is not None:
        return WHOLE - 0.01 * whole
    heads = [word for word in core if word in KNOWN]
    if heads and heads[-1] in known:
        return HEAD - 0.01 * known.index(heads[-1])
    parts = [known.index(word) for word in core if word in known]
    return PART - 0.01 * min(parts) if parts else 0.0


def _core(words: list[str]) -> list[str]:
    """The words of a name that tell something, up to a preposition."""
    end = next((place for place, word in enumerate(words) if place and word in PREPOSITIONS), len(words))
    words = [word for word in words[:end] if word != "name"]
    return [_without_id(word) for word in words if word not in ENDINGS] or words


def speaks_against(name: str) -> bool | None:
    """Whether a yes in a column of this name is a skip; None where its name says nothing of the kind."""
    words = set(tokens(name))
    return None if not words & AGAINST else not words & NEGATIONS


def _without_id(word: str) -> str:
    """`visitorid` is `visitor`."""
    short = word.removesuffix("ids").removesuffix("id")
    return short if len(short) > 2 and any(short in known for known in ROLES.values()) else word


def answer_of(value: str) -> str | None:
    """skip, click, buy or drop, as the value's own words say; None where they say nothing."""
    words = tokens(value)
    if not words:
        return None
    if words[0] in NEGATIONS and len(words) > 1:
        return "skip"
    if set(words) & set(SEEN) and set(words) & LISTS:
        return "skip"
    candidates = ["".join(words), *words]
    candidates += [one.removesuffix("s") for one in candidates]  # clicks, carts and orders
    return next((answer for answer, known in ANSWERS.items() if any(one in known for one in candidates)), None)
