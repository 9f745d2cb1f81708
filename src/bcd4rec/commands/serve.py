"""`bcd4rec serve`: a policy behind HTTP."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._canary import (
    CanaryOptions,
    ErrorRate,
    Highest,
    Margin,
    Most,
    SessionMinutes,
    SessionRewardOption,
)
from bcd4rec.commands._options import AfterSkip, Diversity, Json, Seed, Unanswered, as_unanswered

if TYPE_CHECKING:
    from bcd4rec.serving.arms import Arm
    from bcd4rec.serving.canary import LiveCanary

EPILOG = (
    "Example:  bcd4rec serve policy/ --port 8000 --explore epsilon --epsilon 0.05; "
    "or with a canary:  bcd4rec serve old/ --canary new/ --share 0.1 --on-decision 'notify-team --json'"
)


def add_to(app: typer.Typer) -> None:
    app.command("serve", epilog=EPILOG)(serve)


def serve(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder made by `bcd4rec train`.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    database: Annotated[
        str, typer.Option(help="Where impressions and feedback are kept: a file, or postgresql://….")
    ] = "bcd4rec.sqlite",
    buffer: Annotated[int, typer.Option(min=1, help="Records that may wait while the database is away.")] = 100_000,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that answer on one port, e.g. one for each core.")
    ] = 1,
    shared: Annotated[
        bool, typer.Option("--shared", help="Servers elsewhere answer the same sessions, with one PostgreSQL.")
    ] = False,
    retention_days: Annotated[float | None, typer.Option(help="Forget records that are older; default: never.")] = None,
    explore: Annotated[
        str | None, typer.Option(help="none, epsilon or softmax. Default: the policy's own rule.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε of --explore epsilon.")] = 0.1,
    temperature: Annotated[float, typer.Option(help="Temperature of --explore softmax.")] = 1.0,
    ab: Annotated[Path | None, typer.Option("--ab", help="A second policy that answers some of the sessions.")] = None,
    share: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the sessions for --ab (default 0.5) or --canary (default 0.1)."),
    ] = None,
    canary: Annotated[
        Path | None, typer.Option(help="A new policy that gets some of the sessions until it is promoted or not.")
    ] = None,
    control: Annotated[
        str, typer.Option(help="external: a canary of POLICY itself, against a system of yours (see /v1/impressions).")
    ] = "policy",
    margin: Margin = 0.0,
    error: ErrorRate = 0.05,
    most: Most = 10_000,
    ramp: Annotated[
        str | None, typer.Option(help="Shares of --canary one after the other instead of --share, e.g. 0.05,0.2,0.5.")
    ] = None,
    ramp_sessions: Annotated[
        int, typer.Option(min=1, help="Counted sessions of the new policy before each next share of --ramp.")
    ] = 100,
    session_minutes: SessionMinutes = 30.0,
    session_reward: SessionRewardOption = "slate",
    highest: Highest = None,
    decide: Annotated[
        str, typer.Option(help="act: all sessions go to whom the canary's decision favours; tell: it only says so.")
    ] = "act",
    on_decision: Annotated[
        str | None, typer.Option(help="Command that gets the decision as JSON on its input, or an https:// address.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="CSV or Parquet with item_id, name and picture, for the page.")
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="File with one API key a line; default: the variable BCD4REC_API_KEYS.")
    ] = None,
    admin_keys: Annotated[
        Path | None, typer.Option(help="File with one admin key a line; default: BCD4REC_ADMIN_KEYS.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Requests a second of one client; 0 is no limit.")] = 5_000.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections of one client at once.")] = 256,
    largest_body: Annotated[int, typer.Option(min=1, help="Bytes of a request's body.")] = 1 << 20,
    after_skip: AfterSkip = None,
    diversity: Diversity = None,
    unanswered: Unanswered = None,
    allowed_hosts: Annotated[
        str, typer.Option(help="Names of this server beside localhost and its address, between commas; * is any.")
    ] = "",
    proxies: Annotated[
        str, typer.Option(help="Addresses or networks of reverse proxies whose X-Forwarded-For counts.")
    ] = "",
    new_items: Annotated[
        bool, typer.Option("--new-items", help="Store items of sessions that no policy knows, for the next to learn.")
    ] = False,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Listen beyond this machine without API keys: everybody may ask.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Answer requests until Ctrl-C. The page at / shows what the policy does; /openapi.json describes the interface."""
    _need_packages()
    _one_thread_for_products()
    from bcd4rec.serving.worker import Worker

    worker = Worker.from_environment()
    if workers > 1 and worker is None:
        raise typer.Exit(_supervised(workers, host, port, database, json))
    from bcd4rec.commands.evaluate import slate_options
    from bcd4rec.config import OPTIONS
    from bcd4rec.console import progress
    from bcd4rec.data.sessions import no_tick
    from bcd4rec.policies.slates import Exploration
    from bcd4rec.serving.app import make_app
    from bcd4rec.serving.arms import Arms, load_arm
    from bcd4rec.serving.canary import LiveCanary
    from bcd4rec.serving.catalogue import Names
    from bcd4rec.serving.running import run
    from bcd4rec.serving.security import (
        ADMIN_VARIABLE,
        API_VARIABLE,
        Limits,
        read_keys,
        read_list,
        read_proxies,
        refuse_open,
    )
    from bcd4rec.serving.service import Service
    from bcd4rec.serving.sockets import address, bind, is_local, listen
    from bcd4rec.serving.storage.store import open_store
    from bcd4rec.serving.storage.urls import without_secrets

    with worker.telling_failures() if worker is not None else contextlib.nullcontext():
        rule, silence = slate_options(after_skip, diversity), as_unanswered(unanswered)
        if explore is not None:
            values = {"kind": explore, "epsilon": epsilon, "temperature": temperature}
            rule["exploration"] = Exploration.parse(values, OPTIONS).model_dump()
            _refuse_own(explore)
        keys, admin = (
            read_keys(api_keys, API_VARIABLE, "--api-keys"),
            read_keys(admin_keys, ADMIN_VARIABLE, "--admin-keys"),
        )
        limits = Limits(
            body=largest_body,
            rate=rate,
            connections=connections,
            hosts=read_list(allowed_hosts),
            proxies=read_proxies(proxies),
        )
        refuse_open(keys, is_local(host), open_to_all)
        local = not database.startswith("postgres")
        _refuse_shared(shared, local)
        canary_options = CanaryOptions(
            *(canary, control, share, margin, error, most, ramp, ramp_sessions),
            *(session_minutes, session_reward, highest, decide, on_decision),
        )
        canary_options.check(ab)
        names = Names.read(items) if items is not None else None
        with progress() if worker is None or worker.is_first else contextlib.nullcontext(no_tick) as tick:
            loaded = [
                load_arm(name, folder, part, tick, rule, silence)
                for name, folder, part in canary_options.arms(policy, ab)
            ]
        arms, versions = Arms(loaded, seed), [arm.version for arm in loaded]
        if worker is None:
            bound = bind(host, port)
            listen(bound)
        else:
            worker.check(versions)
            bound, limits = worker.socket(), replace(limits, rate=rate / workers)
            buffer = -(-buffer // workers)
            retention_days = retention_days if worker.is_first else None
        settings = canary_options.settings(loaded, seed) if canary_options.active else None
        several = shared or worker is not None
        store = open_store(database, buffer, retention_days, arms.rewards, worker is not None, awaited=several)
        live = (
            None
            if settings is None
            else LiveCanary(settings, store, arms.rewards, decide == "act", canary_options.hook)
        )
        number = None if worker is None else worker.place.number
        service = Service(arms, store, seed, local, new_items, live, several, number)
        app, where = make_app(service, keys, admin, limits, names, worker), address(bound)
        first: dict[str, Any] = {
            "address": where,
            "policies": versions,
            "database": without_secrets(database, database),
        }
        first |= {} if worker is None else {"workers": workers}
        said = _said(loaded, live, where, open_to_all and not keys, bool(keys), workers)
        told = {"first": first, "said": said, "versions": versions}
        if worker is not None:
            worker.wait(told)
    run(app, bound, lambda: _tell(told, json) if worker is None else None, limits, own_log=worker is None)


def _supervised(workers: int, host: str, port: int, database: str, json: bool) -> int:
    """Several workers run this very command; this process only looks after them, and loads no policy."""
    from bcd4rec.serving.sockets import bind
    from bcd4rec.serving.storage.urls import database_of
    from bcd4rec.serving.supervisor import supervise

    claim = database_of(database).claim()
    return supervise(workers, bind(host, port), claim, lambda told: _tell(told, json))


def _tell(told: dict[str, Any], json: bool) -> None:
    from bcd4rec.console import emit_json, say

    if json:
        emit_json(told["first"])
    for sentence in told["said"]:
        say(sentence)


def _need_packages() -> None:
    from importlib.util import find_spec

    from bcd4rec.errors import InputError

    needed = ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(f"Serving needs {', '.join(missing)}: pip install 'bcd4rec[serve]'.")


def _one_thread_for_products() -> None:
    """Before NumPy is loaded, which looks only then: its other threads would wait for each small product at full speed,
    and take as much processor time as everything else together. Whoever sets these variables is listened to."""
    import os

    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def _refuse_shared(shared: bool, local: bool) -> None:
    from bcd4rec.errors import InputError

    if shared and local:
        raise InputError("--shared: found a SQLite file, which belongs to one server; expected postgresql://….")


def _refuse_own(kind: str) -> None:
    from bcd4rec.errors import InputError

    if kind == "own":
        raise InputError("--explore: found 'own', expected none, epsilon or softmax.")


def _about(arm: "Arm") -> str:
    served, retrieval = arm.recommender.served, arm.recommender.retrieval
    text = f"Arm {arm.name}: {served.method}, version {served.version}, {served.policy.n_items:,} items"
    if retrieval is None:
        return f"{text}, scored exactly."
    found = retrieval.measured
    return (
        f"{text}, retrieved by {retrieval.means}: recall {100 * found.recall:.1f} % of the best 20 on the policy's own "
        f"queries, {found.milliseconds:.1f} ms."
    )


def _said(
    loaded: "list[Arm]", live: "LiveCanary | None", where: str, everybody: bool, keys: bool, workers: int
) -> list[str]:
    """What people read when it serves."""
    said = [_about(arm) for arm in loaded]
    if live is not None:
        said.append(f"Canary {live.settings.id}: {live.described()['sentence']}")
    if everybody:
        said.append("Everybody who reaches this address may use it: there is no API key.")
    several = f" with {workers} workers" if workers > 1 else ""
    return [*said, f"Serving at {where}{several} (Ctrl-C stops). Try it:\n{_curl(where, loaded[0], keys)}"]


def _curl(where: str, arm: "Arm", keys: bool) -> str:
    import json

    session = [arm.recommender.served.vocabulary.id(0)]
    body = json.dumps({"session": session, "k": 3}).replace("'", "\\u0027")
    key = '-H "X-API-Key: $KEY" ' if keys else ""
    return f"  curl -s {where}/v1/recommend {key}-H 'content-type: application/json' -d '{body}'"
