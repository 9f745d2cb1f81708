"""`bcd4rec export`: a policy's networks as ONNX."""

from pathlib import Path
from typing import Annotated

import typer

from bcd4rec.commands._options import Json

EPILOG = "Example:  bcd4rec export policy/ --onnx"


def add_to(app: typer.Typer) -> None:
    app.command("export", epilog=EPILOG)(export)


def export(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder made by `bcd4rec train`.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX models, which run without torch.")] = False,
    json: Json = False,
) -> None:
    """Write the policy's networks into its folder: model.onnx (states to preference vectors), quantiles.onnx and,
    where the policy has one, behaviour.onnx. For catalogues above 100,000 items also the index of candidates."""
    from bcd4rec.console import emit_json, progress, say
    from bcd4rec.errors import InputError
    from bcd4rec.serving.bundles import export_bundle

    if not onnx:
        raise InputError("`bcd4rec export` needs to know the format: pass --onnx.")
    with progress() as tick:
        version, written = export_bundle(policy, tick)
    if json:
        emit_json({"policy": str(policy), "version": version, "files": [path.name for path in written]})
        return
    say(f"Wrote {', '.join(path.name for path in written)} of policy version {version} into {policy}.")
