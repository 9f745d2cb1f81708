"""The HTTP interface, version 1."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from bcd4rec.errors import InputError
from bcd4rec.serving import failures, fast_path, messages
from bcd4rec.serving.arms import Arm
from bcd4rec.serving.canary_state import EXTERNAL, NEW
from bcd4rec.serving.catalogue import Names
from bcd4rec.serving.middleware import Asgi, Middleware
from bcd4rec.serving.response_rates import arm_rates
from bcd4rec.serving.security import Keys, Limits
from bcd4rec.serving.service import Service
from bcd4rec.serving.storage.records import ORGANIC
from bcd4rec.serving.storage.store import BufferFull, StoreClosed
from bcd4rec.serving.worker import Worker
from bcd4rec.version import __version__

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": messages.Problem} for code in (400, 401, 403, 408, 413, 415, 422, 429, 503)
}
CSP = "default-src 'self'; img-src 'self' data: https:; style-src 'self'; script-src 'self'; frame-ancestors 'none'"
STUDIO = Path(str(resources.files("bcd4rec.serving"))) / "studio"


def make_app(
    service: Service,
    keys: Keys,
    admin: Keys,
    limits: Limits,
    names: Names | None = None,
    worker: Worker | None = None,
) -> Asgi:
    """The ASGI application, behind its middleware; `worker`: one of several processes that answer."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.ready = True
        if service.canary is not None:
            service.canary.start()
        attending = asyncio.create_task(worker.attend(service)) if worker is not None else None
        yield
        app.state.ready = False
        if attending is not None:
            attending.cancel()
        if service.canary is not None:
            await asyncio.to_thread(service.canary.close)
        await asyncio.to_thread(service.store.close)

    app = FastAPI(title="bcd4rec", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.ready = False
    _add_errors(app)
    _add_recommending(app, service)
    _add_watching(app, service)
    _add_policies(app, service, worker)
    _add_page(app, service, names or Names())
    return Middleware(app, fast_path.handlers(service), keys, admin, limits, service.metrics)  # type: ignore[arg-type]


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _problem(status: int, sentence: str) -> Response:
    return _json({"error": sentence}, status)


def _add_errors(app: FastAPI) -> None:
    """One sentence for every failure, and nothing of the inside."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _problem(422, failures.of_validation(error.errors()))

    @app.exception_handler(InputError)
    @app.exception_handler(BufferFull)
    @app.exception_handler(StoreClosed)
    async def refused(request: Request, error: Exception) -> Response:
        return _problem(*failures.of(error))

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> Response:
        answer = _problem(error.status_code, "There is nothing here." if error.status_code == 404 else error.detail)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return _problem(*failures.of(error))


def _add_recommending(app: FastAPI, service: Service) -> None:
    @app.post("/v1/recommend", responses=PROBLEMS | {200: {"model": messages.RecommendResponse}})
    async def recommend(asked: messages.RecommendRequest) -> Response:
        """Recommend items for a session."""
        status, value = await fast_path.recommend(service, asked)
        return _json(value, status)

    both: dict[int | str, dict[str, Any]] = {code: {"model": messages.FeedbackResponse} for code in (200, 202)}

    @app.post("/v1/feedback", responses=PROBLEMS | both)
    async def feedback(given: messages.FeedbackRequest) -> Response:
        """Tell how people answered. Status 200 means that it is on disk; 202 that it waits for the database."""
        status, value = await fast_path.feedback(service, given)
        return _json(value, status)

    kept: dict[int | str, dict[str, Any]] = {code: {"model": messages.ImpressionsResponse} for code in (200, 202)}

    @app.post("/v1/impressions", responses=PROBLEMS | kept)
    async def impressions(told: messages.ImpressionsRequest) -> Response:
        """Tell what another system showed in the arm `external`. 200 means that it is on disk; 202 that it waits."""
        status, value = await fast_path.impressions(service, told)
        return _json(value, status)


def _add_watching(app: FastAPI, service: Service) -> None:
    began = time.monotonic()

    @app.get("/v1/health", response_model=messages.Health)
    async def health() -> Response:
        """The process is alive. `degraded`: the database is away; recommendations go on."""
        status = service.store.status()
        word = "ok" if status.connected else "degraded"
        error = None if status.last_error is None or status.connected else "The database is away."
        storage = asdict(status) | {"last_error": error}
        return _json({"status": word, "storage": storage, "uptime_seconds": time.monotonic() - began})

    unready: dict[int | str, dict[str, Any]] = {503: {"model": messages.Ready}}

    @app.get("/v1/ready", response_model=messages.Ready, responses=unready)
    async def ready() -> Response:
        """Whether requests are answered."""
        return _json({"ready": app.state.ready}, 200 if app.state.ready else 503)

    @app.get("/v1/noop", include_in_schema=False)
    async def noop() -> Response:
        """What a request costs that asks for nothing."""
        return _json({})

    @app.get("/metrics", responses=_some(401, 403, 429), response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        text = await asyncio.to_thread(service.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/v1/experiments", response_model=messages.Experiments, responses=_some(401, 403, 429))
    async def experiments() -> Response:
        """Response rates of each policy version and arm, with intervals; and the canary, where there is one."""
        counts = await asyncio.to_thread(service.store.arms)
        now = {(arm.version, arm.name) for arm in service.arms.all}
        now |= {(EXTERNAL, EXTERNAL)} if service.canary is not None and service.canary.external else set()
        canary = service.canary.described() if service.canary is not None else None
        rates = [arm_rates(one, (one.policy, one.arm) in now) for one in counts if one.arm != ORGANIC]
        return _json({"arms": [one.model_dump() for one in rates], "canary": canary})


def _some(*codes: int) -> dict[int | str, dict[str, Any]]:
    """These problems, and too many requests at once, which every route may meet."""
    return {code: PROBLEMS[code] for code in (*codes, 503)}


def _add_policies(app: FastAPI, service: Service, worker: Worker | None) -> None:
    def described(arms: tuple[Arm, ...]) -> Response:
        return _json({"policies": [_describe(arm, service) for arm in arms]})

    @app.get("/v1/policy", response_model=messages.Policies, responses=_some(401, 403, 429))
    async def policy() -> Response:
        """Which policies answer."""
        return described(service.arms.all)

    @app.post("/v1/policy/reload", response_model=messages.Policies, responses=PROBLEMS | {409: PROBLEMS[422]})
    async def reload(asked: messages.ReloadRequest) -> Response:
        """Read policies anew from their folders, without dropping a request. Needs an admin key."""
        if asked.arm is not None and asked.arm not in [arm.name for arm in service.arms.all]:
            return _problem(422, f"arm: found {asked.arm!r}, expected one of the running arms.")
        try:
            if worker is None:
                await asyncio.to_thread(service.reload, asked.arm)
            else:
                await worker.reload_all(asked.arm)
        except InputError as error:
            return _problem(409, f"The old policy goes on: {error}")
        return described(service.arms.all)


def _describe(arm: Arm, service: Service) -> dict[str, Any]:
    served, retrieval = arm.recommender.served, arm.recommender.retrieval
    return {
        "arm": arm.name,
        "version": served.version,
        "method": served.method,
        "items": served.policy.n_items,
        "share": _share(arm, service),
        "responses": served.responses.rewards,
        "positive": list(served.responses.positive),
        "memory": served.policy.memory.model_dump(mode="json"),
        "rule": served.policy.rule.model_dump(mode="json"),
        "retrieval": asdict(retrieval.measured) if retrieval is not None else None,
    }


def _share(arm: Arm, service: Service) -> float:
    if service.canary is None:
        return arm.share
    return service.canary.share if arm.name == NEW else 1.0 - service.canary.share


def _add_page(app: FastAPI, service: Service, names: Names) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(
            (STUDIO / "index.html").read_bytes(), headers={"content-security-policy": CSP}, media_type="text/html"
        )

    @app.get("/v1/items", response_model=messages.Catalogue, responses=_some(401, 403, 422, 429))
    async def items(
        q: Annotated[str, Query(max_length=200, description="Part of an id or a name.")] = "",
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        ids: Annotated[list[str] | None, Query(max_length=500, description="Only these items.")] = None,
    ) -> Response:
        """Items of the catalogue with their names, the most popular first, or those that are asked for."""
        served = service.arms.all[0].recommender.served
        if ids is not None:
            return _json(names.named(served, ids))
        find: Callable[..., dict[str, Any]] = names.search
        return _json(await asyncio.to_thread(find, served, q, limit, offset))

    app.mount("/studio", StaticFiles(directory=STUDIO))
