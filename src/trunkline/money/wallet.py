"""The embedded wallet as a fold: accounts, what they have, and what is held between two of them.

Pure. Owns the steps that stand on the record, what each does to the balances, and which may be taken. Does not own the
record, invoices or keys. Nothing is stored but the steps: the same steps give the same wallet, here and after a crash.

Invariant: the sum of all balances and of all that is held changes only by ``Funded``. No balance is below zero, and
what was held is released or refunded once. An invoice that was used is known for as long as it can be paid.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.money.rail import MAX_MSATS

# The process on record whose steps these are; its subjects are generations of the wallet.
PROCESS: Final = "money.wallet"
# The exchange's own money: what it earns as a provider and spends as a buyer.
OWN: Final = "exchange"
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_ACCOUNTS: Final = 10_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
# Payments that are over are known by their hash for so long at least, and while their invoice can be paid: who asks how
# it ended is told.
REMEMBERED_MS: Final = HOUR_MS
# After so many steps they are carried over as one, or after as many as there were things to carry the last time: so all
# carrying together costs about what the steps did, however much there is.
MAX_STEPS: Final = 512


class Refused(ValueError):
    """A step that cannot be taken. ``code`` is one of NIP-47's, ``why`` a text of ours that may be shown."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Opened(Struct, frozen=True, tag="opened", tag_field="step"):
    """A new account; ``client`` is the public key that may spend it over NIP-47, if anybody may."""

    account: str
    client: str = ""


class Funded(Struct, frozen=True, tag="funded", tag_field="step"):
    """Money of the test network that was made out of nothing."""

    account: str
    msats: int


class Held(Struct, frozen=True, tag="held", tag_field="step"):
    """The payer cannot spend it any more, the payee not yet."""

    payment_hash: str
    payer: str
    payee: str
    msats: int
    # The signed invoice, and the signed event in which the payee asks to be paid by it.
    invoice: str
    asked: Raw
    quote_id: str
    request_id: str
    schema_id: str
    job_hash: str
    # An npub.
    provider: str
    at_ms: int
    # Who says whether the job was done: `provider` or `buyer`.
    judge: str
    # The request over NIP-47 that is answered when it is over: its id, its author, and how it was encrypted.
    nip47: tuple[str, str, str] = ("", "", "")
    # The call that the job is bought for, and the one that had the money held, where they are ours.
    order: str = ""
    call_id: str = ""
    # When the invoice cannot be paid any more.
    expires_ms: int = 0


class Released(Struct, frozen=True, tag="released", tag_field="step"):
    """The payee has it; the preimage is the proof."""

    payment_hash: str
    preimage: str
    at_ms: int
    payer: str
    payee: str
    msats: int


class Refunded(Struct, frozen=True, tag="refunded", tag_field="step"):
    """The payer has it back."""

    payment_hash: str
    reason: str
    at_ms: int
    payer: str
    payee: str
    msats: int


class Moved(Struct, frozen=True, tag="moved", tag_field="step"):
    """Paid at once by one account to another, for no job: there is nothing to wait for, so it is one step."""

    payment_hash: str
    payer: str
    payee: str
    msats: int
    preimage: str
    at_ms: int
    expires_ms: int


class Receipted(Struct, frozen=True, tag="receipted", tag_field="step"):
    """The receipt of a payment is on record, so that nothing is left to do for it."""

    payment_hash: str
    # Empty: none could be made.
    receipt_id: str


class Sent(Struct, frozen=True, tag="sent", tag_field="step"):
    """About to be paid at once, by a wallet elsewhere or in ecash. ``Settled`` says how it ended, if that is known."""

    payment_hash: str
    provider: str
    msats: int
    job_hash: str
    order: str
    call_id: str
    at_ms: int
    # When the invoice cannot be paid any more.
    expires_ms: int = 0
    # What a mint takes for it.
    fee_msats: int = 0


class Settled(Struct, frozen=True, tag="settled", tag_field="step"):
    """How it ended: paid with this preimage, in ecash with this nutzap, or not paid."""

    payment_hash: str
    preimage: str = ""
    # What the payee has, if that is not all that was sent.
    msats: int = 0


class Ecash(Struct, frozen=True, tag="ecash", tag_field="step"):
    """What there is of a mint's ecash, in satoshis; ``locked`` is on its way to a payee, or back. The ecash itself is
    in a file of its own: this is what the record tells of it.
    """

    mint: str
    sats: int
    locked: int
    at_ms: int


class TokenSent(Struct, frozen=True, tag="token_sent", tag_field="step"):
    """Ecash that was made into a token to be given away; the token itself is where the other ecash is."""

    name: str
    mint: str
    sats: int
    at_ms: int


class TokenOver(Struct, frozen=True, tag="token_over", tag_field="step"):
    """Somebody has received such a token, or it was taken back."""

    name: str
    mint: str
    sats: int
    at_ms: int


class TokenReceived(Struct, frozen=True, tag="token_received", tag_field="step"):
    """Ecash that somebody gave us as a token."""

    mint: str
    sats: int
    at_ms: int


class Over(Struct, frozen=True):
    """A payment that is over, as it is remembered."""

    payment_hash: str
    payer: str
    msats: int
    # Empty: it was refunded.
    preimage: str
    at_ms: int
    reason: str = ""
    # When its invoice cannot be paid any more.
    expires_ms: int = 0

    @property
    def forgotten_hour(self) -> int:
        """The first hour in which it need not be known."""
        return max(self.expires_ms, self.at_ms + REMEMBERED_MS) // HOUR_MS + 1


class Ended(Struct, frozen=True, array_like=True):
    """The same as it is carried over: without the names of its fields, since there may be many."""

    payment_hash: str
    payer: str
    msats: int
    preimage: str
    at_ms: int
    reason: str = ""
    expires_ms: int = 0


class Spent(Struct, frozen=True):
    """What the exchange paid, or is about to: for budgets, and for what a person is shown."""

    payment_hash: str
    provider: str
    msats: int
    at_ms: int
    # The call that the job is bought for.
    order: str = ""
    # When an invoice that was sent elsewhere cannot be paid any more.
    expires_ms: int = 0
    # What a mint took for it, beside what the payee has.
    fee_msats: int = 0
    # The call that paid it, and what proves that it was paid at once.
    call_id: str = ""
    preimage: str = ""


class Paid(Struct, frozen=True):
    """What somebody was paid so far."""

    count: int = 0
    msats: int = 0


class Carried(Struct, frozen=True, tag="carried", tag_field="step"):
    """Everything, so that the steps before are not needed any more."""

    balances: dict[str, int]
    clients: dict[str, str]
    held: tuple[Held, ...]
    unreceipted: tuple[Held, ...]
    # As it was carried over once; ``ended`` has it now.
    over: tuple[Over, ...]
    spent: tuple[Spent, ...]
    paid: dict[str, Paid]
    funded: int
    ended: tuple[Ended, ...] = ()
    ecash: tuple[Ecash, ...] = ()
    tokens: tuple[TokenSent, ...] = ()


Step = (
    Opened | Funded | Held | Released | Refunded | Moved | Receipted | Sent | Settled | Ecash | TokenSent | TokenOver
    | TokenReceived | Carried
)  # fmt: skip
encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(Step).decode


SUBJECTS: Final = "wallet-"


def payer_of(step: Step) -> str:
    """The account whose payment a step is about; empty if it is about none."""
    return step.payer if isinstance(step, Held | Released | Refunded | Moved) else ""


def subject_of(generation: int) -> str:
    """Where on record the steps of a generation are: each begins with what was carried over from the one before."""
    return f"{SUBJECTS}{generation}"


def generation_of(subject: str) -> int:
    """The other way round."""
    return int(subject.rpartition("-")[2])


class Wallet:
    """All accounts. ``try_…`` gives a step that may be taken, or raises ``Refused``; ``apply`` takes it."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {OWN: 0}
        self.clients: dict[str, str] = {}
        self.held: dict[str, Held] = {}
        # Released, and their receipt is not on record yet.
        self.unreceipted: dict[str, Held] = {}
        self.over: dict[str, Over] = {}
        # By the hour in which they are forgotten.
        self._forgotten: dict[int, list[str]] = {}
        # Of the last day, what is held, and what was sent elsewhere and could be paid there a second time.
        self.spent: dict[str, Spent] = {}
        # By the payee's npub: what this exchange paid.
        self.paid: dict[str, Paid] = {}
        # By mint.
        self.ecash: dict[str, Ecash] = {}
        # Tokens that were made and not received yet, by name.
        self.tokens: dict[str, TokenSent] = {}
        self.funded = 0

    @property
    def total(self) -> int:
        """All money that there is."""
        return sum(self.balances.values()) + sum(one.msats for one in self.held.values())

    @property
    def size(self) -> int:
        """How much there is to carry over: accounts, payments and payees."""
        parts = (self.balances, self.held, self.unreceipted, self.over, self.spent, self.paid)
        return sum(len(part) for part in parts)

    def account_of(self, client: str) -> str | None:
        """The account that this public key may spend."""
        return self.clients.get(client)

    # -- what may be done ----------------------------------------------------------------------------------------------

    def try_open(self, account: str, client: str = "") -> Opened:
        """A new account."""
        if not NAME.fullmatch(account):
            raise Refused("OTHER", "a name has 1 to 63 of a-z 0-9 _ - and begins with a letter or a digit")
        if account in self.balances:
            raise Refused("OTHER", f"there is a wallet {account} already")
        if client in self.clients:
            raise Refused("OTHER", "this key has a wallet already")
        if len(self.balances) >= MAX_ACCOUNTS:
            raise Refused("QUOTA_EXCEEDED", f"there are {MAX_ACCOUNTS} wallets, which is the most")
        return Opened(account, client)

    def try_fund(self, account: str, msats: int) -> Funded:
        """Money out of nothing."""
        self._known(account)
        if not 1 <= msats <= MAX_MSATS or self.total + msats > MAX_MSATS:
            raise Refused("OTHER", "there is not so much money in the world")
        return Funded(account, msats)

    def try_hold(self, wish: Held) -> Held:
        """Lock money of the payer."""
        self._need_payable(wish)
        return wish

    def try_move(self, wish: Moved) -> Moved:
        """Pay at once."""
        self._need_payable(wish)
        return wish

    def _need_payable(self, wish: Held | Moved) -> None:
        self._known(wish.payer)
        self._known(wish.payee)
        if wish.payment_hash in self.held or wish.payment_hash in self.over:
            raise Refused("PAYMENT_FAILED", "this invoice was used already")
        if not 1 <= wish.msats <= MAX_MSATS:
            raise Refused("PAYMENT_FAILED", "the amount is no number of millisatoshis")
        if self.balances[wish.payer] < wish.msats:
            raise Refused(
                "INSUFFICIENT_BALANCE", f"it costs {wish.msats} msats, and there are {self.balances[wish.payer]}"
            )

    def try_send(self, wish: Sent) -> Sent:
        """Have it paid elsewhere: once, unless the wallet there said that it did not."""
        if wish.payment_hash in self.spent:
            raise Refused("PAYMENT_FAILED", "this invoice was sent to be paid before")
        if wish.at_ms >= wish.expires_ms:
            raise Refused("PAYMENT_FAILED", "this invoice has expired")
        return wish

    def _known(self, account: str) -> None:
        if account not in self.balances:
            raise Refused("OTHER", f"there is no wallet {account}")

    # -- what was done -------------------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Take a step. One that is on record was allowed when it was written; a repeat of an end changes nothing."""
        match step:
            case Opened():
                self.balances.setdefault(step.account, 0)
                if step.client:
                    self.clients[step.client] = step.account
            case Funded():
                self.balances[step.account] += step.msats
                self.funded += step.msats
            case Held():
                self.balances[step.payer] -= step.msats
                self.held[step.payment_hash] = step
                if step.judge == "buyer":
                    self._spend(Spent(step.payment_hash, step.provider, step.msats, step.at_ms, step.order))
            case Released():
                self._released(step)
            case Refunded():
                self._refunded(step)
            case Moved():
                self.balances[step.payer] -= step.msats
                self.balances[step.payee] += step.msats
                over = Over(step.payment_hash, step.payer, step.msats, step.preimage, step.at_ms, "", step.expires_ms)
                self._remember(over)
            case Receipted():
                self.unreceipted.pop(step.payment_hash, None)
            case Sent():
                self._spend(
                    Spent(
                        step.payment_hash, step.provider, step.msats, step.at_ms, step.order, step.expires_ms,
                        step.fee_msats, step.call_id,
                    )
                )  # fmt: skip
            case Settled():
                self._settled(step)
            case Ecash():
                self.ecash[step.mint] = step
            case TokenSent() | TokenOver():
                self._token(step)
            case Carried():
                self._carry(step)

    def _token(self, step: TokenSent | TokenOver) -> None:
        if isinstance(step, TokenSent):
            self.tokens[step.name] = step
        else:
            self.tokens.pop(step.name, None)

    def _released(self, step: Released) -> None:
        held = self.held.pop(step.payment_hash, None)
        if held is None:
            return
        self.balances[held.payee] += held.msats
        self.unreceipted[step.payment_hash] = held
        self._remember(Over(step.payment_hash, held.payer, held.msats, step.preimage, step.at_ms, "", held.expires_ms))
        if held.judge == "buyer":
            self._count(held.provider, held.msats)

    def _refunded(self, step: Refunded) -> None:
        held = self.held.pop(step.payment_hash, None)
        if held is None:
            return
        self.balances[held.payer] += held.msats
        self.spent.pop(step.payment_hash, None)
        over = Over(step.payment_hash, held.payer, held.msats, "", step.at_ms, step.reason, held.expires_ms)
        self._remember(over)

    def _settled(self, step: Settled) -> None:
        spent = self.spent.get(step.payment_hash)
        if spent is not None and step.preimage:
            msats = step.msats or spent.msats
            spent = self.spent[step.payment_hash] = msgspec.structs.replace(spent, msats=msats, preimage=step.preimage)
            self._count(spent.provider, spent.msats)
        elif not step.preimage:
            self.spent.pop(step.payment_hash, None)

    def _count(self, provider: str, msats: int) -> None:
        before = self.paid.get(provider, Paid())
        self.paid[provider] = Paid(before.count + 1, before.msats + msats)

    def _spend(self, spent: Spent) -> None:
        at_ms = spent.at_ms
        for name, one in list(self.spent.items()):
            # A day more than the invoice says: clocks differ.
            if at_ms - max(one.at_ms, one.expires_ms) >= DAY_MS and name not in self.held:
                del self.spent[name]
        self.spent[spent.payment_hash] = spent

    def _remember(self, over: Over) -> None:
        # In whole hours, so that nobody looks through all of them for each payment.
        hour = over.at_ms // HOUR_MS
        for past in [one for one in self._forgotten if one <= hour]:
            for name in self._forgotten.pop(past):
                self.over.pop(name, None)
        self.over[over.payment_hash] = over
        self._forgotten.setdefault(over.forgotten_hour, []).append(over.payment_hash)

    # -- carrying over -------------------------------------------------------------------------------------------------

    def carried(self) -> Carried:
        """All of it as one step."""
        return Carried(
            dict(self.balances), dict(self.clients), tuple(self.held.values()), tuple(self.unreceipted.values()),
            (), tuple(self.spent.values()), dict(self.paid), self.funded,
            tuple(Ended(*msgspec.structs.astuple(one)) for one in self.over.values()), tuple(self.ecash.values()),
            tuple(self.tokens.values()),
        )  # fmt: skip

    def _carry(self, step: Carried) -> None:
        self.balances, self.clients = dict(step.balances), dict(step.clients)
        self.held = {one.payment_hash: one for one in step.held}
        self.unreceipted = {one.payment_hash: one for one in step.unreceipted}
        self.over, self._forgotten = {}, {}
        for over in (*step.over, *(Over(*msgspec.structs.astuple(one)) for one in step.ended)):
            self.over[over.payment_hash] = over
            self._forgotten.setdefault(over.forgotten_hour, []).append(over.payment_hash)
        self.spent = {one.payment_hash: one for one in step.spent}
        self.paid, self.funded = dict(step.paid), step.funded
        self.ecash = {one.mint: one for one in step.ecash}
        self.tokens = {one.name: one for one in step.tokens}
