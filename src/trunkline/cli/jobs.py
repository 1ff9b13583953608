"""``trunkline jobs``: the job types and where they can run, one of them in full, and submitting a job.

Owns what a person sees of jobs. A job is submitted as a call of the tool that has its schema id, so its progress, its
exit code and Ctrl-C are those of ``trunkline call``. Does not own what a type is (``trunkline.jobs.schemas``).
"""

from __future__ import annotations

from typing import Any, Final

import click
from msgspec import Raw, structs, to_builtins

from trunkline.cli.call import ProgressPrinter, run_and_tell
from trunkline.cli.client import ExchangeClient, encode
from trunkline.cli.options import CommandSettings, json_argument, shared
from trunkline.cli.terminal import CommandFailed, did_you_mean, heading, near, printable, say, table
from trunkline.cli.tools import all_tools, help_with_tool
from trunkline.errors import ExchangeUnreachable
from trunkline.jobs.schemas import JobType, job_types
from trunkline.jobs.tool_schemas import job_type_of, tool_of

AGENT: Final = "trunkline.jobs"


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def jobs(context: click.Context, settings: CommandSettings) -> None:
    """Typed jobs: what there is and where it runs; with `submit`, do one.

    \b
    trunkline jobs
    trunkline jobs show oa.embedding.v1
    trunkline jobs submit oa.embedding.v1 '{"texts": ["hello"], "model": "trunkline-hashing-v1"}'
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
    table(["SCHEMA", "VERIFICATION", "RUNS AT", "DESCRIPTION"], rows)


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
    say(f"runs at: {printable(', '.join(told['runs_at']) or 'nowhere; `trunkline status` says why')}")
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
@shared
def submit(settings: CommandSettings, schema_id: str, json_input: str, key: str | None, no_wait: bool) -> None:
    """Do a job of the type SCHEMA with the inputs JSON (`-` for stdin, `@FILE` for a file), and print its outputs.

    Progress is shown on stderr. Exits as `trunkline call` does.
    """
    exchange = settings.connect()
    tool = _tool(exchange, schema_id)
    said: dict[str, object] = {"tool_id": tool, "input": Raw(json_argument(json_input))}
    if key is not None:
        said["idempotency_key"] = key
    help_with_tool(exchange, tool)
    run_and_tell(settings, exchange, encode(said), ProgressPrinter(), no_wait=no_wait)


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
    runs_at = [place for place in places or () if place == tool or place.partition("/")[2] == job.schema_id]
    return {
        "schema_id": job.schema_id,
        "verification_mode": job.schema.verification_mode,
        "runs_at": [place.partition("/")[0] for place in runs_at],
        "description": job.detail.title,
    }
