"""The HTTP front end: it checks form, size, who calls and how often, and asks whoever has the data.

It holds nothing but counters that tell of nobody.  Answers to callers leave in steps of time
(`Http.reply_step`), and nothing is written about single requests but refusals.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from privlearn import __version__
from privlearn.errors import ServiceError
from privlearn.service.access import AccessTokens, Caller, Role
from privlearn.service.config import ServiceConfig
from privlearn.service.counters import Counters
from privlearn.service.link import Asked
from privlearn.service.logs import log, log_error
from privlearn.service.messages import (
    LONGEST_ID,
    Budget,
    CloseBatch,
    ClosedBatch,
    Forget,
    Observe,
    Offered,
    Refusal,
    Status,
)
from privlearn.service.problems import problem
from privlearn.service.rates import Rates
from privlearn.service.visits import digest, visit_of, what_is_wrong

F = TypeVar("F", bound=Callable[..., Any])

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BEARER: Final = HTTPBearer(
    auto_error=False, description="An access token; `privlearn access add` makes one."
)
_KEY: Final[dict[str, Any]] = {"min_length": 1, "max_length": LONGEST_ID}
_PRIVATE: Final = {"/v1/observe"}
"""Resources of which not even refusals are counted or logged: who answers is nobody else's."""
_OF_DATA: Final = {("/v1/recommend", "bad-request"), ("/v1/recommend", "key-reused")}
"""Refusals that follow from one visitor's body, and are counted nowhere."""
_TAKEN: Final = "The visitor's arrival index was used up, and the record is null"
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Refusal} for status in (401, 403, 404, 409, 410, 413, 422, 429, 503)
}


def create_app(
    config: ServiceConfig,
    tokens: AccessTokens,
    asked: Asked,
    *,
    full: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """The application.

    Args:
        config: of the service.
        tokens: who may call.
        asked: answers what it cannot.
        full: whether nothing but `/health` is to be answered.
    """
    counters = Counters()
    front = _Front(config, tokens, asked, counters)
    app = FastAPI(
        title="privlearn",
        version=__version__,
        summary="A private learner: offers, answers, and the budget that they cost.",
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect may lead to http, and the token with it
        lifespan=front.lifespan,
        responses={},
    )
    front.add_routes(app)
    app.state.counters = counters
    app.add_exception_handler(ServiceError, front.refuse)
    app.add_exception_handler(RequestValidationError, front.refuse)
    app.add_exception_handler(HTTPException, front.refuse)
    app.add_exception_handler(Exception, front.fail)
    most = config.largest_request
    app.add_middleware(_Limits, most=most, full=full, refuse=front.beyond_limit)
    return app


class _Limits:
    """Refuses what there is no place for, and bodies that are too large, before they are held."""

    def __init__(
        self, app: Any, most: int, full: Callable[[], bool], refuse: Callable[[str, str], Response]
    ) -> None:
        self._app, self._most, self._full, self._refuse = app, most, full, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._full() and scope["path"] != "/health":
            await self._refuse(scope["path"], "busy")(scope, receive, send)
            return
        body, more = bytearray(), scope["method"] not in ("GET", "HEAD", "DELETE", "OPTIONS")
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > self._most:
            await self._refuse(scope["path"], "too-large")(scope, receive, send)
            return
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > self._most:
                await self._refuse(scope["path"], "too-large")(scope, receive, send)
                return
            more = message.get("more_body", False)
        taken = False

        async def whole() -> MutableMapping[str, Any]:
            nonlocal taken
            if taken:
                return await receive()
            taken = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, whole, send)


class _Front:
    def __init__(
        self, config: ServiceConfig, tokens: AccessTokens, asked: Asked, counters: Counters
    ) -> None:
        self._tokens, self._asked, self._counters = tokens, asked, counters
        self._step, self._learner = config.http.reply_step, config.learner
        self._ruled = config.people is not None
        # a flood of one worker ends here; the count over all of them is the owner's
        self._rates = Rates(config.access.requests_per_second, config.access.burst)
        self._lines = Rates(1.0, 20)  # of refusals in the log

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Hands counters on while the application runs."""
        telling = asyncio.create_task(self._tell())
        try:
            yield
        finally:
            telling.cancel()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            counted = self._counters.taken()
            if counted is None:
                continue
            try:
                await self._asked.ask("count", counted)
            except ServiceError:
                self._counters.add(counted)

    def caller(self, role: Role) -> Callable[..., Awaitable[Caller]]:
        """A dependency: the caller, who must have a role."""

        async def checked(
            request: Request, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
        ) -> Caller:
            if sent is None or not sent.credentials:
                raise problem("no-token")
            caller = self._tokens.caller(sent.credentials)
            if caller is None:
                raise problem("unknown-token")
            if not caller.may(role):
                needs = f"this access token has the role {caller.role!r}; the request needs"
                raise problem("wrong-role", f"{needs} {role!r}")
            # each resource by itself: whether offers are made must not follow from how many answer
            if (wait := self._rates.wait(f"{caller.name} {request.url.path}")) > 0:
                raise problem("too-many", retry_after=wait)
            return caller

        return checked

    async def in_steps(self, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """The result, or the error, when a whole number of steps has passed."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            return await work
        finally:
            passed = loop.time() - start
            await asyncio.sleep(math.ceil(passed / self._step) * self._step - passed)

    def add_routes(self, app: FastAPI) -> None:
        self._add_serving(app)
        self._add_watching(app)
        self._add_operating(app)
        self._add_probes(app)

    def _add_serving(self, app: FastAPI) -> None:
        ask, counters, shapes = self._asked.ask, self._counters, self._learner.shapes
        exchange, ruled = self._learner.exchange, self._ruled
        serving = Annotated[Caller, Depends(self.caller("serve"))]

        @app.post(
            "/v1/recommend",
            response_model=exchange.offered,
            responses=_REFUSALS,
            openapi_extra={"requestBody": _described(exchange.recommend)},
        )
        async def recommend(
            caller: serving,
            request: Request,
            idempotency_key: Annotated[str | None, Header(**_KEY)] = None,
        ) -> Offered:
            """Serves the next visitor.

            The visitor's arrival index is used up, whatever the body is: data that cannot be used
            count as null, and so does a body of another form, of which the caller is told.  Asked
            again with the same Idempotency-Key, the same offer is returned while it is open.
            """
            visit = visit_of(await request.body(), exchange.recommend, shapes, ruled=ruled)
            fields = {"caller": caller.name, **visit.fields}
            if idempotency_key is not None:
                fields |= {"key": idempotency_key, "digest": digest(visit)}
            with counters.timed(self._step):
                told = await self.in_steps(ask("recommend", fields, visit.attached))
            if visit.wrong is not None:
                raise problem("bad-request", f"{visit.wrong}. {_TAKEN}")
            return exchange.offered(**told)

        @app.post("/v1/observe", status_code=204, responses=_REFUSALS)
        @_with_body("sent", exchange.observe)
        async def observe(caller: serving, sent: Observe) -> None:
            """Takes the one answer to an offer.

            One that cannot be used counts as null: a choice that was not on offer, a reward or loss
            that is no number or out of the learner's range.
            """
            fields = {"caller": caller.name, "offer": sent.offer, "answer": sent.answer}
            await self.in_steps(ask("observe", fields))

    def _add_watching(self, app: FastAPI) -> None:
        ask = self._asked.ask
        watching = Annotated[Caller, Depends(self.caller("watch"))]

        @app.get("/v1/status", responses=_REFUSALS)
        async def status(caller: watching) -> Status:
            """Returns what is public of the service."""
            return Status(**await ask("status", {"caller": caller.name}))

        @app.get("/v1/budget", responses=_REFUSALS)
        async def budget(caller: watching) -> Budget:
            """Returns what is left of the budget of the most charged user."""
            return Budget(**await ask("budget", {"caller": caller.name}))

        @app.get("/v1/certificate", responses=_REFUSALS)
        async def certificate(
            caller: watching, delta: Annotated[float | None, Query(gt=0, lt=1)] = None
        ) -> dict[str, Any]:
            """Returns what the ledger proves so far, as an auditor would find it."""
            return await ask("certificate", {"caller": caller.name, "delta": delta})

        if self._learner.exchange.results is not None:

            @app.get(
                "/v1/results", response_model=self._learner.exchange.results, responses=_REFUSALS
            )
            async def results(caller: watching) -> dict[str, Any]:
                """Returns what was learned so far; to look changes nothing, however often."""
                return await ask("results", {"caller": caller.name})

        @app.get("/metrics", response_class=PlainTextResponse, responses=_REFUSALS)
        async def metrics(caller: watching) -> PlainTextResponse:
            """Returns metrics for Prometheus, all of them public."""
            told = await ask("metrics", {"caller": caller.name})
            return PlainTextResponse(told["text"], media_type=told["type"])

    def _add_operating(self, app: FastAPI) -> None:
        ask = self._asked.ask
        operating = Annotated[Caller, Depends(self.caller("operator"))]

        @app.post("/v1/close-batch", responses=_REFUSALS)
        async def close_batch(
            caller: operating,
            sent: CloseBatch,
            idempotency_key: Annotated[str | None, Header(**_KEY)] = None,
        ) -> ClosedBatch:
            """Closes the open batch now, which the caller names, for good.

            Users of it who have not come yet count as absent: their places are given up.  It is
            refused if no place was given out, or if more are left than are to be given up.  Asked
            again with the same Idempotency-Key, nothing is done, and the answer is the same.
            """
            asked = {"caller": caller.name, **sent.model_dump(), "key": idempotency_key}
            return ClosedBatch(**await ask("close_batch", asked))

        @app.post("/v1/forget", status_code=204, responses=_REFUSALS)
        async def forget(caller: operating, who: Forget) -> None:
            """Learns nothing more of a person; what was released stays."""
            await ask("forget", {"caller": caller.name, "person": who.person})

    def _add_probes(self, app: FastAPI) -> None:
        @app.get("/health", include_in_schema=True)
        async def health() -> dict[str, str]:
            """Says that this worker answers."""
            return {"status": "ok"}

        @app.get("/ready", responses={503: {"model": Refusal}})
        async def ready() -> dict[str, str]:
            """Says whether offers are made: the owner is there and users are left."""
            await self._asked.ask("ready", {})
            return {"status": "ready"}

    async def refuse(self, request: Request, error: Exception) -> Response:
        """The answer to a request that is not done; it repeats nothing that was sent."""
        if isinstance(error, RequestValidationError):
            mistakes = ((item, item["loc"][1:]) for item in error.errors())
            error = problem("bad-request", what_is_wrong(mistakes))
        elif isinstance(error, HTTPException):
            codes = {404: "not-found", 405: "wrong-method"}
            error = problem(codes.get(error.status_code, "bad-request"))
        assert isinstance(error, ServiceError)
        return self._refusal(request.url.path, error)

    def beyond_limit(self, path: str, code: str) -> Response:
        """The answer to a request that is not looked at."""
        return self._refusal(path, problem(code, retry_after=1 if code == "busy" else None))

    def _refusal(self, path: str, error: ServiceError) -> Response:
        page = path.rstrip("/")
        if page not in _PRIVATE and (page, error.code) not in _OF_DATA:
            self._counters.refused(error.code)
            if error.status in (401, 403) and not self._lines.wait(error.code):
                log("refused", code=error.code)
        headers = {"Cache-Control": "no-store"}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(error.retry_after))
        told = Refusal(code=error.code, message=str(error))
        return JSONResponse(told.model_dump(), error.status, headers)

    async def fail(self, request: Request, error: Exception) -> Response:
        """An error of the service: its place goes to the log, and nothing of it to the caller."""
        log_error("request-failed", error)
        return self._refusal(request.url.path, problem("failed"))


def _with_body(name: str, form: type[BaseModel]) -> Callable[[F], F]:
    def named(route: F) -> F:
        route.__annotations__[name] = form
        return route

    return named


def _described(form: type[BaseModel]) -> dict[str, Any]:
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    needed = any(field.is_required() for field in form.model_fields.values())
    return {"required": needed, "content": {"application/json": {"schema": schema}}}
