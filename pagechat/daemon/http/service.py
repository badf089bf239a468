"""What the routes need of the daemon, so that they need not know the front."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import EngineReady
from pagechat.daemon.answering import Answering
from pagechat.daemon.http.admission import Admission
from pagechat.daemon.http.metrics import Metrics
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.supervisor import Supervisor
from pagechat.daemon.text import ModelText
from pagechat.protocol import Status


@dataclass(frozen=True, slots=True)
class Service:
    answering: Answering
    supervisor: Supervisor
    status: Callable[[], Status]
    admission: Admission
    metrics: Metrics
    block_map: Callable[[], str]
    """PoolWatch.block_map."""

    def ready(self) -> tuple[EngineReady, ModelText]:
        """The engine and its model's text. Raises ApiError 503 while there is none."""
        engine, text = self.supervisor.ready_engine, self.answering.text
        if self.supervisor.state != "ready" or engine is None or text is None:
            raise ApiError(503, f"the model is not ready: {self.supervisor.words}", code=self.supervisor.state)
        return engine, text

    def check_model(self, name: str | None) -> EngineReady:
        """Raises ApiError for a model that is not served here."""
        engine, _ = self.ready()
        if name not in (None, engine.model.name):
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here; this daemon serves {engine.model.name!r}",
                param="model",
                code="model_not_found",
            )
        return engine


def new_id(kind: str) -> str:
    """An object's id as OpenAI writes them: "chatcmpl-3f2a..."."""
    return f"{kind}-{secrets.token_hex(12)}"


def now() -> int:
    return int(time.time())
