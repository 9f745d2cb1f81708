"""`bcd4rec reproduce`: the paper's tables and figures, by one command each."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd4rec.commands._options import Jobs, Json, Ray, Store

if TYPE_CHECKING:
    from bcd4rec.runner.store import Plan, TaskStore
    from reproduction.findings import Reproduction
    from reproduction.studies import Laboratory

EPILOG = "Example:  bcd4rec reproduce table1 --domains recsim-1,recsim-2,recsim-3 --jobs 2; or all of it in minutes:  \
bcd4rec reproduce all --quick --jobs 2; or on a cluster:  bcd4rec reproduce all --ray HOST:PORT --store s3://bucket/runs"


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(metavar="WHAT", help="table1 … table6, figure1 … figure5, ablations, as_printed or all."),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the results. What is there already is not computed again.")
    ] = Path("reproduced"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many runs of everything; 3, or 1 with --quick.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes: fewer users, sessions, updates and settings.")
    ] = False,
    jobs: Jobs = None,
    ray: Ray = None,
    store: Store = None,
    domains: Annotated[
        str | None, typer.Option(help="Only these: recsim-1, recsim-2, recsim-3, shop, trivago, diginetica.")
    ] = None,
    trivago: Annotated[Path | None, typer.Option(help="Events of the RecSys Challenge 2019, if you have them.")] = None,
    diginetica: Annotated[Path | None, typer.Option(help="Folder of the CIKM Cup 2016, if you have it.")] = None,
    keep_old: Annotated[
        bool, typer.Option("--keep-old", help="Use results that other versions of the code have made, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Make tables and figures of the paper again, with our numbers beside the printed ones.

    A run that was stopped continues where it was; whatever two tables have in common is computed once.
    """
    from bcd4rec.commands._tasks import make, refuse_parted
    from bcd4rec.console import emit_json, say
    from bcd4rec.errors import InputError
    from bcd4rec.runner.bucket import open_store
    from bcd4rec.runner.store import plan
    from reproduction import gathering, studies

    began = time.monotonic()
    asked = studies.known(what)
    lab = _laboratory(quick, seeds, domains, {"trivago": trivago, "diginetica": diginetica})
    refuse_parted(store, ray)
    kept = open_store(store or out / "store", keep_old)
    wanted = [task for study in asked for task in lab.tasks(study)]
    todo = plan(wanted, kept)
    _announce(todo, lab, kept)
    try:
        failed = make(todo.tasks, kept, jobs, ray)
    except KeyboardInterrupt:
        where = store or out
        raise InputError(f"Interrupted; what is finished is kept in {where}: run the same command to go on.") from None
    found = gathering.reproduce(asked, lab, kept, failed, lab.command(" ".join(what)))
    files = _write(out, found)
    for failure in failed.values():
        say(f"Failed: {failure}")
    if json:
        from dataclasses import asdict

        emit_json(asdict(found) | {"files": files, "failed": failed, "seconds": time.monotonic() - began})
        return
    from reproduction.terminal import show_finding

    for finding in found.findings:
        show_finding(finding, quick)
    say(f"Done in {(time.monotonic() - began) / 60:.1f} minutes. Open {files['page']} in a browser.")


def _laboratory(quick: bool, seeds: int | None, domains: str | None, paths: dict[str, Path | None]) -> "Laboratory":
    from bcd4rec.errors import InputError
    from reproduction.domains import DOMAINS
    from reproduction.studies import Laboratory

    names = [name.strip() for name in domains.split(",")] if domains else list(DOMAINS)
    for name in names:
        if name not in DOMAINS:
            raise InputError(f"--domains: found {name!r}, expected some of {', '.join(DOMAINS)}.")
        if domains and name in paths and paths[name] is None:
            raise InputError(f"--domains: {name} needs your copy of its log; give it with --{name} PATH.")
    for name, path in paths.items():
        if path is not None and not path.exists():
            raise InputError(f"--{name}: {path} does not exist.")
    sources = tuple((name, path) for name, path in paths.items() if path is not None)
    return Laboratory(quick, seeds, tuple(names), sources)


def _announce(todo: "Plan", lab: "Laboratory", store: "TaskStore") -> None:
    from bcd4rec.console import say

    kept = len(todo.tasks) - len(todo.waiting)
    say(f"{len(todo.tasks)} tasks, of which {kept} are there already; {store.name} keeps them.")
    if todo.old:
        say(
            f"{todo.old} of the others were made by another version of the code and are made again; "
            "--keep-old would use them as they are."
        )
    if lab.absent:
        missing = ", ".join(f"{name} (--{name} PATH)" for name in lab.absent)
        say(f"Left out, since their logs were not given: {missing}.")


def _write(out: Path, found: "Reproduction") -> dict[str, str]:
    from dataclasses import asdict

    from bcd4rec.artifacts import atomic_file, write_json
    from reproduction.markdown import markdown
    from reproduction.page import write_reproduction

    page, text, results = out / "report.html", out / "reproduction.md", out / "results.json"
    write_reproduction(page, found, force=True)
    with atomic_file(text, force=True) as partial:
        partial.write_text(markdown(found), encoding="utf-8")
    with atomic_file(results, force=True) as partial:
        write_json(partial, asdict(found))
    return {"page": str(page), "text": str(text), "results": str(results)}
