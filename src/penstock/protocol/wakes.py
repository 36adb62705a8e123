"""The rules of a wake: its life as one decision table, its tokens, and the form of a webhook's
signature. Pure; keys, time and randomness are passed in.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.protocol.subscription import WEBHOOK, Kind

SIGNATURE: Final = "webhook-signature"


# -- the life of a wake


class Phase(Enum):
    """Where a wake is in its life."""

    IDLE = "idle"
    """There is no wake."""
    ISSUED = "issued"
    """Nobody has it yet: it waits for a worker's claim, or for its webhook to be called."""
    LEASED = "leased"
    """A worker holds it, or its webhook is being called or has accepted it; the lease ends it."""
    RETRY = "retry"
    """Its webhook failed and is called again at `retry_us`, with the same wake."""
    BACKOFF = "backoff"
    """It ended with a webhook that did not answer; another may be issued at `retry_us`."""


class Wake(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current wake of a subscription, as it is stored.

    `generation` numbers the wakes of a subscription; `wake_id` is empty while there is none.
    `holder` is the worker that has claimed it. `lease_us` is when a lease ends. `attempts` counts
    the failures of the webhook in a row, `retry_us` is when it is tried again. `announced` says
    that the wake event is in the wake stream, or that the webhook has accepted the wake.
    """

    generation: int = 0
    wake_id: str = ""
    holder: str = ""
    lease_us: int = 0
    attempts: int = 0
    retry_us: int = 0
    announced: bool = msgspec.field(default=False, name="told")

    @property
    def phase(self) -> Phase:
        if self.retry_us:
            return Phase.RETRY if self.wake_id else Phase.BACKOFF
        if not self.wake_id:
            return Phase.IDLE
        return Phase.LEASED if self.lease_us else Phase.ISSUED

    @property
    def deadline_us(self) -> int:
        """When `Deadline` is the next event; 0 for never."""
        return self.retry_us or self.lease_us

    def is_current(self, wake_id: str, generation: int) -> bool:
        """Whether this is the wake that a worker means."""
        return bool(self.wake_id) and (self.wake_id, self.generation) == (wake_id, generation)


IDLE: Final = Wake()


class News(NamedTuple):
    """A stream of the subscription has something after its cursor."""


class Issue(NamedTuple):
    """The turn in which wakes are issued has come."""

    wake_id: str


class Announced(NamedTuple):
    """The wake event is queued for the wake stream."""

    generation: int


class AnnounceFailed(NamedTuple):
    """The wake event did not get into the wake stream."""

    generation: int


class Claim(NamedTuple):
    """A worker asks for the work; `wake_id` is for a wake that has to be issued first."""

    worker: str
    wake_id: str
    lease_us: int


class CallStarted(NamedTuple):
    """The webhook is being called."""

    wake_id: str
    lease_us: int


class CallFailed(NamedTuple):
    """The webhook could not be reached, or refused the wake."""

    wake_id: str
    retry_us: int


class Extend(NamedTuple):
    """A worker or a webhook is at work and needs longer."""

    wake_id: str
    lease_us: int


class Finish(NamedTuple):
    """A worker or a webhook has done its work, or gives the wake back."""

    wake_id: str


class Deadline(NamedTuple):
    """`deadline_us` has passed. `retry_us` counts if a webhook has not answered until then."""

    call_in_flight: bool
    retry_us: int


class Resume(NamedTuple):
    """The server has started again with this wake, or its subscription is back after a deletion
    that failed."""


class Delete(NamedTuple):
    """The subscription is deleted."""


Event = (
    News
    | Issue
    | Announced
    | AnnounceFailed
    | Claim
    | CallStarted
    | CallFailed
    | Extend
    | Finish
    | Deadline
    | Resume
    | Delete
)


class Effect(Enum):
    """What has to be done after a step."""

    ISSUE_SOON = "issue soon"
    """Send `Issue` in a later turn, together with other subscriptions."""
    ANNOUNCE = "announce"
    """Write the wake event to the wake stream, before the wake is stored."""
    STORE = "store"
    """Write the wake to the log."""
    CALL = "call"
    """Call the webhook, once the wake is stored if it is to be."""
    CANCEL_CALL = "cancel call"


class Refusal(Enum):
    """Why a request of a worker changes nothing for it."""

    HELD = "another worker holds the lease"
    NO_WORK = "nothing is pending"
    STALE = "the wake is over"


class Step(NamedTuple):
    wake: Wake
    effects: tuple[Effect, ...] = ()
    refusal: Refusal | None = None


def decide(wake: Wake, event: Event, *, kind: Kind, has_work: bool) -> Step:
    """Return what an event makes of a wake, and what has to be done about it.

    `has_work` says whether something is after a cursor of the subscription. Where the table has no
    line the wake stays as it is; CallStarted, CallFailed, Extend and Finish of another wake than
    the current one are refused as stale.

    | phase           | event                       | becomes | effects                           |
    |-----------------|-----------------------------|---------|-----------------------------------|
    | idle            | News, work                  | idle    | issue soon                        |
    | idle            | Issue, work                 | issued  | announce, store / store, call     |
    | issued          | Announced, AnnounceFailed   | issued  |                                   |
    | leased          | Claim                       | leased  | refused: held                     |
    | issued          | Claim, no work              | idle    | store; refused: no work           |
    | any other       | Claim, no work              | same    | refused: no work                  |
    | any other       | Claim, work                 | leased  | store                             |
    | with a wake     | CallStarted                 | leased  |                                   |
    | with a wake     | CallFailed                  | retry   | store                             |
    | with a wake     | Extend                      | leased  | store                             |
    | with a wake     | Finish                      | idle    | store, issue soon if work         |
    | leased          | Deadline, call in flight    | backoff | cancel call, store                |
    | leased          | Deadline                    | idle    | issue soon if work, else store    |
    | retry           | Deadline                    | issued  | call                              |
    | backoff         | Deadline                    | idle    | issue soon if work, else store    |
    | issued          | Resume, not announced       | issued  | announce, store / store, call     |
    | leased          | Resume, webhook, no answer  | issued  | store, call                       |
    | any             | Delete                      | idle    | cancel call                       |
    """
    match event:
        case News():
            is_due = has_work and wake.phase is Phase.IDLE
            return Step(wake, (Effect.ISSUE_SOON,) if is_due else ())
        case Issue(wake_id):
            return _issue(wake, wake_id, kind) if has_work else Step(wake)
        case Announced(generation) | AnnounceFailed(generation):
            if wake.phase is not Phase.ISSUED or wake.generation != generation:
                return Step(wake)
            return Step(replace(wake, announced=isinstance(event, Announced)))
        case Claim():
            return _claim(wake, event, has_work=has_work)
        case CallStarted() | CallFailed() | Extend() | Finish():
            return _report(wake, event, has_work=has_work)
        case Deadline():
            return _deadline(wake, event, has_work=has_work)
        case Resume():
            return _resume(wake, kind)
        case Delete():
            return Step(_over(wake), (Effect.CANCEL_CALL,))


def _next(wake: Wake, wake_id: str) -> Wake:
    # Failures are remembered: another one waits longer still.
    return Wake(wake.generation + 1, wake_id, attempts=wake.attempts)


def _over(wake: Wake) -> Wake:
    return replace(IDLE, generation=wake.generation)


def _rest(wake: Wake, *, has_work: bool) -> Step:
    """End a wake of which nobody waits to hear: the next one is stored if there is one."""
    return Step(wake, (Effect.ISSUE_SOON,) if has_work else (Effect.STORE,))


def _issue(wake: Wake, wake_id: str, kind: Kind) -> Step:
    if wake.phase is not Phase.IDLE:
        return Step(wake)
    # The wake event goes first: a crash in between announces the wake again.
    effects = (Effect.STORE, Effect.CALL) if kind == WEBHOOK else (Effect.ANNOUNCE, Effect.STORE)
    return Step(_next(wake, wake_id), effects)


def _claim(wake: Wake, event: Claim, *, has_work: bool) -> Step:
    if wake.phase is Phase.LEASED:
        return Step(wake, refusal=Refusal.HELD)
    if not has_work:
        if wake.phase is Phase.ISSUED:
            # Nobody will come for it, and it must not hold off the next.
            return Step(_over(wake), (Effect.STORE,), Refusal.NO_WORK)
        return Step(wake, refusal=Refusal.NO_WORK)
    issued = wake if wake.wake_id else _next(wake, event.wake_id)
    held = replace(issued, holder=event.worker, lease_us=event.lease_us, retry_us=0, announced=True)
    return Step(held, (Effect.STORE,))


def _report(
    wake: Wake, event: CallStarted | CallFailed | Extend | Finish, *, has_work: bool
) -> Step:
    """What is said of a wake by those who have it."""
    if not wake.wake_id or event.wake_id != wake.wake_id:
        return Step(wake, refusal=Refusal.STALE)
    match event:
        case CallStarted(_, lease_us):
            return Step(replace(wake, lease_us=lease_us, retry_us=0))
        case CallFailed(_, retry_us):
            return Step(_failed(wake, retry_us), (Effect.STORE,))
        case Extend(_, lease_us):
            extended = replace(wake, attempts=0, retry_us=0, lease_us=lease_us, announced=True)
            return Step(extended, (Effect.STORE,))
        case Finish():
            later = (Effect.ISSUE_SOON,) if has_work else ()
            return Step(_over(wake), (Effect.STORE, *later))


def _failed(wake: Wake, retry_us: int) -> Wake:
    return replace(wake, lease_us=0, attempts=wake.attempts + 1, retry_us=retry_us)


def _deadline(wake: Wake, event: Deadline, *, has_work: bool) -> Step:
    match wake.phase:
        case Phase.LEASED if event.call_in_flight:
            # It did not answer in time: a failure, and the end of the wake.
            failed = replace(_failed(wake, event.retry_us), wake_id="")
            return Step(failed, (Effect.CANCEL_CALL, Effect.STORE))
        case Phase.LEASED:
            return _rest(_over(wake), has_work=has_work)
        case Phase.RETRY:
            return Step(replace(wake, retry_us=0), (Effect.CALL,))
        case Phase.BACKOFF:
            idle = replace(wake, retry_us=0) if has_work else _over(wake)
            return _rest(idle, has_work=has_work)
        case _:
            return Step(wake)


def _resume(wake: Wake, kind: Kind) -> Step:
    if wake.announced or wake.phase not in (Phase.ISSUED, Phase.LEASED):
        return Step(wake)
    if kind == WEBHOOK:
        # Perhaps once more: its answer was not heard, and the lease ended with the call.
        return Step(replace(wake, lease_us=0), (Effect.STORE, Effect.CALL))
    if wake.phase is Phase.ISSUED:
        return Step(wake, (Effect.ANNOUNCE, Effect.STORE))
    return Step(wake)


# -- tokens and signatures


def mint_token(secret: bytes, scope: str, generation: int) -> str:
    """Return a bearer token for one generation of one subscription."""
    return f"{generation}.{_mac(secret, scope, generation)}"


def token_generation(secret: bytes, scope: str, token: str) -> int | None:
    """Return the generation of a token; None unless this server made it for `scope`."""
    number, _, mac = token.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 16):
        return None
    generation = int(number)
    expected = _mac(secret, scope, generation)
    same = hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace"))
    return generation if same and number == str(generation) else None


def signed_bytes(timestamp_s: int, body: bytes) -> bytes:
    """Return the bytes that the signature of a webhook covers."""
    return b"%d.%s" % (timestamp_s, body)


def signature_header(timestamp_s: int, kid: str, signature: bytes) -> str:
    """Return the value of a Webhook-Signature header."""
    return f"t={timestamp_s},kid={kid},ed25519={b64url(signature)}"


def b64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_b64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _mac(secret: bytes, scope: str, generation: int) -> str:
    message = f"{scope}\n{generation}".encode("utf-8", "surrogatepass")
    return b64url(hmac.new(secret, message, hashlib.sha256).digest())
