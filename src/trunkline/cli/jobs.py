"""``trunkline jobs``: the job types and where they can run, one of them in full, submitting a job, who does jobs.

Owns what a person sees of jobs. A job is submitted as a call of the tool that has its schema id, so its progress, its
exit code and Ctrl-C are those of ``trunkline call``. Does not own what a type is (``trunkline.jobs.schemas``).
"""

from __future__ import annotations

from typing import Any, Final

import click
from msgspec import DecodeError, Raw, structs, to_builtins

from trunkline.cli.call import ProgressPrinter, run_and_tell
from trunkline.cli.client import ExchangeClient, at, decode, encode, end_with
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, json_argument, shared
from trunkline.cli.terminal import CommandFailed, did_you_mean, heading, near, printable, say, table, typed
from trunkline.cli.tools import all_tools, help_with_tool
from trunkline.errors import ExchangeUnreachable
from trunkline.jobs.schemas import FAILED_RUNS, SANDBOX, JobType, job_types
from trunkline.jobs.tool_schemas import job_type_of, tool_of

AGENT: Final = "trunkline.jobs"
# Has jobs done by others; it runs none itself.
REMOTE: Final = "nostr.jobs"


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def jobs(context: click.Context, settings: CommandSettings) -> None:
    """Typed jobs: what there is and where it runs; with `submit`, do one.

    \b
    trunkline jobs
    trunkline jobs show oa.embedding.v1
    trunkline jobs submit oa.embedding.v1 '{"texts": ["hello"], "model": "trunkline-hashing-v1"}'
    trunkline jobs providers
    """
    if context.invoked_subcommand is not None:
        return
    places = _places(settings)
    found = [_described(job, places) for job in job_types().values()]
    if settings.shown_as_json({"jobs": found}):
        return
    rows = [
        [one["schema_id"], one["verification_mode"], ", ".join(one["runs_at"]) or "nowhere", one["description"]]
        for one in found
    ]
    table(["SCHEMA", "VERIFICATION", "RUNS AT", "DESCRIPTION"], rows, keep=(0,))


@jobs.command("show")
@click.argument("schema_id", metavar="ID")
@shared
def show(settings: CommandSettings, schema_id: str) -> None:
    """One job type in full: its schema, and where it can run."""
    places = _places(settings)
    job = _found(settings, schema_id)
    told = _described(job, places) | {
        "schema": to_builtins(job.schema),
        "input_schema": job.detail.inputs,
        "output_schema": job.detail.outputs,
        "redundancy": job.detail.redundancy,
        "adjudication": job.detail.adjudication,
    }
    if settings.shown_as_json(told):
        return
    say(f"{heading(schema_id)}  {job.schema.verification_mode}")
    say(printable(job.detail.title, keep="\n"))
    nowhere = f"nowhere; `{typed('status')}` says why"
    say(f"runs at: {printable(', '.join(told['runs_at'])) or nowhere}")
    if job.schema.verification_mode == "subjective":
        say(f"providers: {job.detail.redundancy}, adjudication: {job.detail.adjudication}")
    for name, fields in (("inputs", job.schema.inputs), ("outputs", job.schema.outputs)):
        say(f"{name}:")
        rows = [[f"  {field}", *_cells(structs.asdict(of))] for field, of in fields.items()]
        table(["  FIELD", "TYPE", "REQUIRED", "DESCRIPTION"], rows)


def _cells(field: dict[str, Any]) -> list[str]:
    required = field.get("required")
    return [field["type"], "" if required is None else "yes" if required else "no", field["description"]]


@jobs.command("submit")
@click.argument("schema_id", metavar="SCHEMA")
@click.argument("json_input", metavar="JSON")
@click.option("--key", metavar="K", help="A name of yours for this job: a repeat returns its outcome.")
@click.option("--no-wait", is_flag=True, help="If a person is asked, do not wait: exit with 3.")
@click.option("--remote", is_flag=True, help="Have it done by providers on Nostr.")
@click.option("--provider", metavar="NPUB", help="With --remote: ask only this one.")
@click.option("--bid", metavar="MSATS", type=WholeNumber(0), help="With --remote: what it may cost.")
@click.option("--private", is_flag=True, help="With --remote: nobody but the provider can read it.")
@click.option("--providers", metavar="N", type=WholeNumber(1, 9), help="With --remote: how many have to do it.")
@shared
def submit(
    settings: CommandSettings,
    schema_id: str,
    json_input: str,
    key: str | None,
    no_wait: bool,
    remote: bool,
    **options: str | int | bool | None,
) -> None:
    """Do a job of the type SCHEMA with the inputs JSON (`-` for stdin, `@FILE` for a file), and print its outputs.

    Progress is shown on stderr. Exits as `trunkline call` does, and with 1 where a command of a sandbox job failed.
    With --remote it leaves this machine: what providers gave is verified, and `verification` says how.
    """
    said_of_market = {name: value for name, value in options.items() if value}
    if options["bid"] is not None:
        said_of_market["bid_msats"] = said_of_market.pop("bid", 0)
    if said_of_market and not remote:
        raise click.UsageError("--provider, --bid, --private and --providers need --remote")
    body = json_argument(json_input)
    exchange = settings.connect()
    tool = _remote_tool(exchange, schema_id) if remote else _tool(exchange, schema_id)
    said: dict[str, object] = {"tool_id": tool, "input": Raw(_with_options(body, said_of_market))}
    if key is not None:
        said["idempotency_key"] = key
    help_with_tool(exchange, tool)
    fails = _has_failed if schema_id == SANDBOX else lambda _: False
    run_and_tell(settings, exchange, encode(said), ProgressPrinter(), no_wait=no_wait, has_failed=fails)


def _has_failed(output: bytes) -> bool:
    """Whether a sandbox job says that a command of it went wrong."""
    told = decode(output)
    return isinstance(told, dict) and told.get("status") in FAILED_RUNS


def _with_options(body: bytes, options: dict[str, Any]) -> bytes:
    """The inputs, and beside them what is said of how they are bought. What is no object the exchange refuses."""
    if not options:
        return body
    try:
        inputs = decode(body, type=dict[str, Raw])
    except DecodeError:
        return body
    if "remote" in inputs:
        raise click.UsageError("`remote` in JSON, or --provider, --bid, --private and --providers: not both")
    return encode({**inputs, "remote": options})


def _remote_tool(exchange: ExchangeClient, schema_id: str) -> str:
    """The tool that has jobs of a type done elsewhere."""
    wanted = f"{REMOTE}/{schema_id}"
    known = [str(one["tool_id"]) for one in all_tools(exchange)]
    if wanted in known:
        return wanted
    names = [name.partition("/")[2] for name in known if name.startswith(f"{REMOTE}/oa.")]
    if not names:
        raise _nothing_bought()
    text = did_you_mean(near(schema_id, names)) or "; `trunkline jobs providers` lists who announces what"
    raise CommandFailed("not_found", f"no provider announces {schema_id!r}{text}")


def _nothing_bought() -> CommandFailed:
    text = "no jobs are bought here; `trunkline status` says why nostr is off"
    return CommandFailed("tool.unavailable", text, exit_code=1)


@jobs.command("providers")
@click.option("--schema", metavar="ID", help="Only who does jobs of this type.")
@shared
def providers(settings: CommandSettings, schema: str | None) -> None:
    """Who announces which jobs on Nostr, at which price, and how they did for us."""
    exchange = settings.connect()
    if not any(one["tool_id"] == f"{REMOTE}/providers" for one in all_tools(exchange)):
        raise _nothing_bought()
    wish = {} if schema is None else {"schema_id": schema}
    found = exchange.post(at("calls"), {"tool_id": f"{REMOTE}/providers", "input": wish})
    if found.get("status") != "succeeded":
        end_with(
            {"code": "tool.unavailable", "message": "the providers cannot be listed", **(found.get("error") or {})}
        )
    listed = found["output"]
    if settings.shown_as_json(listed):
        return
    rows = [
        [
            printable(one["provider"]),
            printable(", ".join(one["supported_jobs"])),
            "/".join(_price(price) for price in one["pricing"].values()),
            f"{one['capacity']['max_concurrent_jobs']}",
            _own_word(one["stability"]),
            _record(one["record"]),
        ]
        for one in listed["providers"]
    ]
    table(["PROVIDER", "JOBS", "MSATS IN/OUT/MINUTE", "AT ONCE", "SAYS", "OUR RECORD"], rows, keep=(0,))
    if len(rows) < listed["count"]:
        say(f"{len(rows)} of {listed['count']}; --schema shows fewer")


def _price(msats: float) -> str:
    return f"{int(msats):,}" if msats == int(msats) else f"{msats:,}"


def _own_word(stability: dict[str, Any] | None) -> str:
    """What a provider says of how it did."""
    return "" if stability is None else f"{stability['success_rate']:.0%} of {stability['jobs_completed']}"


def _record(record: dict[str, int]) -> str:
    """How it did for us."""
    told = [f"{count} {name}" for name, count in record.items() if count and name != "total_ms"]
    return ", ".join(told) or "none"


def _tool(exchange: ExchangeClient, schema_id: str) -> str:
    """The tool that does jobs of a type."""
    named = tool_of(schema_id)
    if named is not None:
        return named
    if schema_id not in job_types():
        raise _no_schema(schema_id)
    wanted = f"{AGENT}/{schema_id}"
    if not any(one["tool_id"] == wanted for one in all_tools(exchange)):
        text = f"{schema_id} cannot run here; `trunkline status` says why"
        raise CommandFailed("tool.unavailable", text, exit_code=1)
    return wanted


def _no_schema(schema_id: str) -> CommandFailed:
    text = did_you_mean(near(schema_id, job_types())) or "; `trunkline jobs` lists them"
    return CommandFailed("not_found", f"no job type {schema_id!r}{text}")


def _found(settings: CommandSettings, schema_id: str) -> JobType:
    job = job_types().get(schema_id)
    if job is not None:
        return job
    tool = tool_of(schema_id)
    if tool is None:
        raise _no_schema(schema_id)
    for one in all_tools(settings.connect()):
        if one["tool_id"] == tool:
            schema = one.get("output_schema")
            output = None if schema is None else Raw(encode(schema))
            return job_type_of(tool, one["description"], Raw(encode(one["input_schema"])), output)
    raise CommandFailed("tool.not_found", f"no tool {tool!r}, which {schema_id} stands for")


def _places(settings: CommandSettings) -> list[str] | None:
    """The tools that there are; None if no exchange runs, which is no reason not to show the types."""
    try:
        return [str(one["tool_id"]) for one in all_tools(settings.connect())]
    except ExchangeUnreachable:
        return None


def _described(job: JobType, places: list[str] | None) -> dict[str, Any]:
    tool = tool_of(job.schema_id)
    runs_at = [
        place
        for place in places or ()
        if place == tool or (place.partition("/")[2] == job.schema_id and not place.startswith(f"{REMOTE}/"))
    ]
    return {
        "schema_id": job.schema_id,
        "verification_mode": job.schema.verification_mode,
        "runs_at": [place.partition("/")[0] for place in runs_at],
        "description": job.detail.title,
    }
