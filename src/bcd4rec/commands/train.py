"""`bcd4rec train`: a data set becomes a policy."""

import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from bcd4rec.agents.agent import AGENTS
from bcd4rec.commands._options import Force, Jobs, Json, Ray, Seed, Settings, Store, Threads, set_threads
from bcd4rec.workflows.fitting import Watcher

if TYPE_CHECKING:
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.policies.policy import Policy
    from bcd4rec.training import Report, Trainer
    from bcd4rec.workflows.fitting import Fitted
    from bcd4rec.workflows.judging import Validation
    from bcd4rec.workflows.searching import Search

EPILOG = """Example:  bcd4rec train bcd4rec dataset/ --out policy/ --set beta=0.5 --seed 0

After more days:  bcd4rec train bcd4rec dataset/ --from policy/ --out newer/"""
CHECKPOINT_SECONDS = 30.0
LINE_SECONDS = 2.0  # between lines of progress where there is no terminal
USER = "user"  # not a policy, but who judges policies


def add_to(app: typer.Typer) -> None:
    app.command("train", epilog=EPILOG)(train)


def train(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help=f"An agent ({', '.join(AGENTS.declared())}), a baseline, or user, for --env learned.",
        ),
    ],
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder made by `bcd4rec prepare`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the policy; it appears when training is complete.")],
    preset: Annotated[
        str | None, typer.Option(help="Settings of an agent by name: paper, its own network; --set overrides them.")
    ] = None,
    settings: Settings = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--from", help="Go on from this policy of the same agent, by item ids; new items start as new."),
    ] = None,
    search: Annotated[
        str,
        typer.Option(help="What still needs choosing is chosen by validation sessions: quick, full, or none of it."),
    ] = "quick",
    seed: Seed = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train so many policies, with --seed and the next ones; --out gets a folder of each."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=2, help="Train one agent with so many workers of Ray, each with a part of every batch."),
    ] = None,
    jobs: Jobs = None,
    ray: Ray = None,
    store: Store = None,
    threads: Threads = 1,
    device: Annotated[str, typer.Option(help="Where agents train: auto (a GPU if there is one), cpu or cuda.")] = "cpu",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted training of the same policy.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also log to this folder for TensorBoard (needs bcd4rec[tracking]).")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Learn a policy, or a user to try policies on, from a data set.

    Ctrl-C keeps a policy's checkpoint beside --out; --resume continues it bit for bit.
    """
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.console import emit_json, pairs_table, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.policies import bundle

    kind = USER if method == USER else "policy" if seeds is None else "seeds"
    refuse_existing(out, force, kind, [dataset, earlier])
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    if resume and not checkpoint.is_dir():
        raise InputError(f"{checkpoint} does not exist, so there is nothing to resume; train without --resume.")
    how, given = as_search(search), _settings(method, preset, settings)
    set_threads(threads)
    if method == USER:
        from bcd4rec.commands._user import train_user

        if resume or tensorboard is not None or seeds is not None or workers is not None or earlier is not None:
            raise InputError(
                "train user takes no --resume, --from, --seeds, --workers or --tensorboard; it takes a minute."
            )
        train_user(dataset, out, given, seed, force, json)
        return
    if seeds is not None:
        from bcd4rec.commands._seeds import train_seeds

        if resume or tensorboard is not None or workers is not None or earlier is not None:
            raise InputError(
                "train --seeds takes no --from, --workers, --tensorboard or --resume: it goes on by itself."
            )
        numbers = range(seed, seed + seeds)
        train_seeds(method, dataset, out, given, how, numbers, device, jobs, ray, store, force, json)
        return
    if workers is not None:
        from bcd4rec.commands._workers import train_with_workers
        from bcd4rec.runner.tasks import Given
        from bcd4rec.workflows.seeds import SeededPolicy

        if jobs is not None or tensorboard is not None or earlier is not None:
            raise InputError("train --workers takes no --jobs, --from or --tensorboard; each worker has one thread.")
        task = SeededPolicy(Given.of("dataset", dataset), method, tuple(given.items()), how, seed, device, workers)
        train_with_workers(task, dataset, out, ray or "local", store, resume, force, json)
        return
    if jobs is not None or ray is not None or store is not None:
        raise InputError("--jobs, --ray and --store are for several policies or workers: give --seeds or --workers.")
    data = Dataset.load(dataset)
    began = time.monotonic()
    watcher = TrainingProgress(checkpoint, _tensorboard(tensorboard))
    begun = None if earlier is None else bundle.load(earlier)
    fitted, validation, policy = learn(method, data, out, watcher, given, seed, resume, how, device, force, begun)
    seconds = time.monotonic() - began
    last = fitted.about.get("training", {})
    if json:
        about = {"policy": str(out), "method": method, "seed": seed, "seconds": seconds}
        told = {"rule": policy.rule.model_dump(mode="json"), "rule_reason": policy.about["rule"]["reason"]}
        emit_json(about | last | {key: fitted.about.get(key) for key in ("search", "sets", "validation")} | told)
        for note in validation.notes:
            say(note)
        return
    pairs = [
        (name.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
        for name, value in last.items()
    ]
    show(pairs_table(f"{method}, trained in {seconds:.0f} s", pairs or [("config", str(fitted.about["config"]))]))
    if "search" in fitted.about:
        show(search_sentence(fitted.about["search"]))
    if "sets" in fitted.about:
        from bcd4rec.report.training import sets_sentence

        show(sets_sentence(fitted.about["sets"]))
    show(f"Slates: {policy.rule.in_words()} Why: {policy.about['rule']['reason']}.")
    if validation.judgement is not None:
        from bcd4rec.commands import _judgement

        show(_judgement.table(validation.judgement, "How it ranks what was liked among what was shown"))
    for sentence in (*validation.sentences(), *validation.notes):
        show(sentence)
    say(f"The policy is in {out}. Try it:  bcd4rec recommend {out} --session ID,ID --top 3")


def learn(
    method: str,
    data: "Dataset",
    out: Path,
    watcher: "TrainingProgress",
    given: dict[str, Any],
    seed: int = 0,
    resume: bool = False,
    search: "Search" = "quick",
    device: str = "cpu",
    force: bool = False,
    earlier: "Policy | None" = None,
) -> "tuple[Fitted, Validation, Policy]":
    """Fit, judge on validation sessions, choose the slate rule, and write the policy to the folder `out`."""
    from bcd4rec.artifacts import atomic_directory, remove
    from bcd4rec.console import progress
    from bcd4rec.policies import bundle
    from bcd4rec.workflows import fitting
    from bcd4rec.workflows.seeds import finished

    if not resume:
        remove(watcher.checkpoint)  # of an earlier run, whose other configurations this one must not go on from
    with watcher:
        begun = watcher.checkpoint if resume else None
        fitted = fitting.fit(method, data, given, seed, watcher, begun, None, search, device, earlier=earlier)
    with progress() as tick:
        validation, policy = finished(fitted, data, seed, tick)
    with atomic_directory(out, force) as folder:
        bundle.write(policy, folder)
        if fitted.reports:
            from bcd4rec.evaluation.offline import realised_return
            from bcd4rec.report.training import write_training_report

            realised, sets = realised_return(data), fitted.about.get("sets")
            write_training_report(folder / "training.html", method, fitted.reports, realised, sets)
    remove(watcher.checkpoint)
    return fitted, validation, policy


def as_search(name: str) -> "Search":
    from typing import get_args

    from bcd4rec.errors import InputError
    from bcd4rec.workflows.searching import Search

    for known in get_args(Search):
        if name == known:
            return cast("Search", name)
    raise InputError(f"--search: found {name!r}, expected {', '.join(get_args(Search))}.")


def search_sentence(told: dict[str, Any]) -> str:
    """What the search chose, and why."""
    if not told.get("reason"):
        return f"Nothing was searched: {told['setting']} is {told['chosen']:g}."
    if not told["tried"]:
        return f"Chosen: {told['reason']}."
    runs = ", ".join(f"{one['strength']:g}: {one['difference']:+.4f} ± {one['error']:.4f}" for one in told["tried"])
    setting = told["setting"]
    if told["chosen"] is None:
        return f"Chosen: {told['reason']} (validation AUC against it by {setting}: {runs})."
    return f"Chosen: {setting} {told['chosen']:g}, {told['reason']} (validation AUC against it by {setting}: {runs})."


def _settings(method: str, preset: str | None, settings: list[str] | None) -> dict[str, Any]:
    from bcd4rec.config import parse_settings
    from bcd4rec.workflows.fitting import with_preset

    return with_preset(method, preset, dict(parse_settings(settings)))


def _tensorboard(folder: Path | None) -> Any:
    from bcd4rec.errors import InputError

    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise InputError("--tensorboard needs the tensorboard package: pip install 'bcd4rec[tracking]'.") from None
    return SummaryWriter(str(folder))  # type: ignore[no-untyped-call]


class TrainingProgress(Watcher):
    """A bar with the numbers that matter, checkpoints every half minute, and a Ctrl-C that loses nothing."""

    def __init__(self, checkpoint: Path, board: Any = None, again: str = "with --resume"):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from bcd4rec.console import err

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
        self._bar = Progress(*columns, console=err(), transient=True, disable=not err().is_terminal)
        self._task = self._bar.add_task("pre-training", total=None)
        self.checkpoint, self._board, self._again = checkpoint, board, again
        self._saved = self._told = time.monotonic()
        self._interrupted = False
        self._last: tuple[Trainer, Report] | None = None
        self._handlers: dict[int, Any] = {}  # those in force before interruptions were deferred

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._bar.stop()
        if self._board is not None:
            self._board.close()
        if self._interrupted and self._last is not None and kind is None:  # it came after the last report
            self._stop(*self._last)

    def stage(self, name: str, loss: float) -> None:
        self._bar.update(self._task, description=name if math.isnan(loss) else f"{name}: loss {loss:.3f}")
        self._line(name)

    def report(self, trainer: "Trainer", report: "Report") -> None:
        self._defer_interrupts()
        self._last = trainer, report
        text = (
            f"loss {report.loss:.3f}  Q̄ {report.q_bar:.2f}  target {report.target_value:.2f}  "
            f"allowed {100 * report.allowed:.0f} %  {report.per_second:,.0f} transitions/s"
        )
        self._bar.update(self._task, description=text, completed=report.step, total=report.updates)
        self._line(f"update {report.step:,} of {report.updates:,}: {text}")
        if self._board is not None:
            for name in ("loss", "q_bar", "target_value", "allowed"):
                self._board.add_scalar(name, getattr(report, name), report.step)
        if self._interrupted:
            self._stop(trainer, report)
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self._save(trainer)

    def _save(self, trainer: "Trainer") -> None:
        from bcd4rec.training import checkpoint_of

        trainer.save(checkpoint_of(trainer.config, self.checkpoint))
        self._saved = time.monotonic()

    def _stop(self, trainer: "Trainer", report: "Report") -> NoReturn:
        from bcd4rec.errors import InputError

        self._save(trainer)
        raise InputError(
            f"Interrupted at update {report.step:,} of {report.updates:,}; the checkpoint is in "
            f"{self.checkpoint}: run the same command {self._again} to continue."
        )

    def _line(self, text: str) -> None:
        """Where there is no terminal, a line now and then."""
        if not self._bar.console.is_terminal and time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            self._bar.console.print(text)

    def _defer_interrupts(self) -> None:
        """From the first report on, an interruption waits for the next one, where the agent is whole."""

        def note(*_: object) -> None:
            self._interrupted = True

        if not self._handlers:
            self._handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
