"""Training on a machine that is lent for minutes: carry data there in parts, run a queue, bring results back.

    here    python benchmarks/lent_gpu parts DATA/cifar-10-batches-bin carry/cifar10
            python benchmarks/lent_gpu source HEAD carry/source/HEAD.tar.xz
    there   python3 benchmarks/lent_gpu start --seconds 1700 carry/cifar10/part-1
            python3 benchmarks/lent_gpu add carry/cifar10/part-2
            python3 benchmarks/lent_gpu run students-cifar10-resnet20 --source carry/source/HEAD.tar.xz
            python3 benchmarks/lent_gpu wait 500 --out OUT
    here    python benchmarks/lent_gpu receive OUT --into runs/paper --results results/accuracy.jsonl

The machine needs Python 3.12, torch and safetensors, and no network: training needs nothing compiled.
CONTRIBUTING.md explains.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import collect
import machine
import parts

HERE = Path(__file__).resolve().parent
SOURCES = ("src", "recipes", ":(exclude)src/xnorpp/shipped/*.xnor")


def main() -> int:
    given = _parser().parse_args()
    try:
        return int(given.function(given) or 0)
    except (ValueError, OSError) as error:
        print(f"lent_gpu {given.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lent_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, function: object, text: str, there: bool = False) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(function=function)
        if there:
            usual = os.environ.get("LENT_HOME") or str(Path(tempfile.gettempdir(), "lent_gpu"))
            one.add_argument(
                "--home", type=Path, default=Path(usual), help="the tool's folder there (%(default)s)"
            )
        return one

    one = command("parts", _parts, "write a data set as parts that can be carried one at a time")
    one.add_argument("folder", type=Path, help="cifar-10-batches-bin, cifar-100-binary or tiny-imagenet-200")
    one.add_argument("out", type=Path, help="part-1, part-2, ... are written there")
    one.add_argument("--bytes", type=int, default=parts.PART_BYTES, help="of a part at most (%(default)s)")
    one = command("source", _source, "write the code of a commit as one file")
    one.add_argument("commit", help="a tag, branch or commit")
    one.add_argument("out", type=Path, help="the archive, .tar.xz")
    one = command("start", _start, "note the deadline, start MPS, take the first parts", there=True)
    one.add_argument("--seconds", type=float, required=True, help="until the machine goes back")
    one.add_argument("folders", type=Path, nargs="*", help="parts of a data set, folders of runs")
    one = command("add", _add, "take parts of a data set, or folders of earlier runs", there=True)
    one.add_argument("folders", type=Path, nargs="+")
    one = command("run", _run, "unpack source and data, start the queue of a plan", there=True)
    one.add_argument("plan", help=f"a file, or one of {', '.join(sorted(p.stem for p in _plans()))}")
    one.add_argument("--source", type=Path, required=True, help="what `lent_gpu source` wrote")
    one.add_argument("--jobs", type=int, help="runs at a time (the plan's)")
    one.add_argument("--first", default="", help="leave out the plan's runs before this one")
    one.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    one.add_argument(
        "--margin", type=float, default=60, help="seconds before the deadline at which it ends (60)"
    )
    one.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="laid over every run: for trials"
    )
    one = command("stop", _stop, "end these runs, so that the others have the device", there=True)
    one.add_argument("keys", nargs="+")
    one = command("wait", _wait, "report progress, then write what should come back", there=True)
    one.add_argument("seconds", type=float, help="at most")
    one.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="an empty folder ($OUT)")
    one.add_argument("--margin", type=float, default=30, help="seconds before the deadline to return at (30)")
    one.add_argument("--anew", action="store_true", help="send weights again that were sent before")
    one = command("receive", _receive, "unpack what came back, append rows to the results")
    one.add_argument("came", type=Path, help="the folder that came back")
    one.add_argument("--into", type=Path, required=True, help="records and weights are written there")
    one.add_argument("--results", type=Path, help="append rows that are not in this accuracy.jsonl")
    return parser


def _plans() -> list[Path]:
    return list((HERE / "plans").glob("*.toml"))


def _parts(given: argparse.Namespace) -> None:
    for part in parts.write_parts(given.folder, given.out, given.bytes):
        print(f"{part}: {sum(path.stat().st_size for path in part.iterdir()):,} bytes")


def _source(given: argparse.Namespace) -> None:
    git = ["git", "-C", str(HERE)]
    commit = subprocess.run([*git, "rev-parse", f"{given.commit}^{{commit}}"], capture_output=True, text=True)
    if commit.returncode:
        raise ValueError(f"{given.commit} is no commit of this repository")
    top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True)
    git[2] = top.stdout.strip()
    name = commit.stdout.strip()
    held = subprocess.run([*git, "ls-tree", "--name-only", name], capture_output=True, text=True, check=True)
    wanted = [path for path in SOURCES if path.startswith(":") or path in held.stdout.split()]
    done = subprocess.run(
        [*git, "archive", "--format=tar", name, "--", *wanted], capture_output=True, check=True
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(lzma.compress(done.stdout))
    print(f"{given.out}: {name}, {given.out.stat().st_size:,} bytes")


def _start(given: argparse.Namespace) -> None:
    machine.start(given.home, given.seconds, given.folders)


def _add(given: argparse.Namespace) -> None:
    machine.add(given.home, given.folders)


def _run(given: argparse.Namespace) -> None:
    path = Path(given.plan)
    path = path if path.suffix == ".toml" else HERE / "plans" / f"{given.plan}.toml"
    plan = machine.read_plan(path)
    if given.jobs is not None:
        plan["jobs"] = given.jobs
    machine.run(given.home, plan, given.source, first=given.first, device=given.device, margin=given.margin,
                settings=given.set)  # fmt: skip


def _stop(given: argparse.Namespace) -> None:
    machine.stop(given.home, given.keys)


def _wait(given: argparse.Namespace) -> int:
    if given.out is None:
        raise ValueError("--out must name the folder that comes back, or OUT in the environment")
    why = machine.wait(given.home, given.seconds, given.margin)
    plan = json.loads((given.home / "plan.json").read_text(encoding="utf-8"))
    small = partial(machine.shrink, given.home)
    index = collect.collect(given.home, given.out, plan["weights"], small, why != "running", given.anew)
    print(f"{why}; weights sent: {', '.join(index['weights']) or 'none'}")
    if index["left"]:
        print(f"call `wait 0` again for {', '.join(index['left'])}")
    return 1 if why.startswith("failed") else 0


def _receive(given: argparse.Namespace) -> None:
    index = collect.receive(given.came, given.into, given.results)
    print(f"{given.into}: weights {', '.join(index['weights']) or 'none'}; {index['rows']} rows appended")


if __name__ == "__main__":
    sys.exit(main())
