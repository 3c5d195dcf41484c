"""The training runs of the paper's tables: recipe, seed, row of which table, and in which order.

A run is one line here and, once it is finished, one line of `results/accuracy.jsonl`; `queue` makes the one
from the other. The order is the order of usefulness: the models that ship, the rows that answer the claim
(XNOR-Net, Case 1, Case 4, real-valued; one seed, then three), the other rows, Table 3, the ablation.

Table 1 and Table 3 take the paper's recipe and its network as they are: on Tiny-ImageNet's 64 pixels the 7x7
stem with stride and pooling too, on CIFAR-10's 32 a 3x3 stem. The test set is read once, at a run's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.tried import levers

# Their first results were recorded before rows had hashes of code and settings.
WITHOUT_HASH = ("shipped", "table1", "table3", "ablation", "trial")
EXPERIMENTS = (*WITHOUT_HASH, "claim", "short", "enlarged", "table3-revised", "baseline", "lever", "student")
DATASETS = ("tiny_imagenet", "cifar10", "cifar100")
SEEDS = (0, 1, 2)
# For the two rows whose difference is the claim: after three seeds its 95 % interval was 2.1 points wide.
CLAIM_ROWS, MORE_SEEDS = ("xnor", "case4"), (3, 4)
FIRST_ROWS = ("xnor-alpha", "xnor", "case4", "case1", "real")
OTHER_ROWS = ("bnn", "case3", "case2")
TABLE3_ROWS = ("xnor", "case4", "bnn", "real")  # of both networks; ResNet-18's are Table 1's
SHIPPED = ("cifar10-resnet18", "cifar10-resnet20", "tiny-imagenet-resnet18")

# A tenth of the training set, held out: choices are made on it and never on the test set.
HOLDOUT = 0.1
ABLATION_EPOCHS = 10

# What a run on a GPU sets beside its recipe. None of it is a choice about accuracy.
ON_GPU = ("run.amp=bf16", "run.channels_last=true", "run.tensorboard=false")

# The paper's claim, by three experiments on Tiny-ImageNet with the paper's block and recipe. Seeds were fixed
# before the first run, are the same for every row, and were not used before.
CLAIM_SEEDS = (10, 11, 12, 13, 14)
SHORT_SEEDS = (10, 11, 12)
ENLARGED_SEEDS = (10, 11)
COMPARED_ROWS = ("xnor-alpha", "xnor", "case1", "case4")
SHORT_ROWS = ("bnn", "xnor-alpha", "xnor", "case1", "case2", "case4")
SHORT_EPOCHS = (3, 10, 25)
ENLARGED_ROWS = ("xnor-alpha", "case1", "case4")
ENLARGED_SIZE = 224
ENLARGED_HOLDOUT = "data.holdout=0.01"
# Batch norm measured again over the whole training set (390 batches of 256), and training accuracy recorded.
MEASURED = ("schedule.statistics_batches=390", "run.eval_train=true")

# Table 3 again, where the first runs leave open whether method or set-up decided; a seed that E1 has too.
REVISED_ROWS = ("bnn", "xnor-alpha", "xnor", "case4", "real")  # of AlexNet
REVISED_SEED = 10
REVISED_BATCHES = "schedule.statistics_batches=250"  # the whole training set, 250 batches of 400

# factor -> level -> settings; the first level is the paper's recipe, where the ablation starts
ABLATION: dict[str, dict[str, tuple[str, ...]]] = {
    "start of the scale": {
        "analytic": (),
        "ones": ("model.options.scale_init=ones",),
        "calibrated": ("model.calibrate=true",),
    },
    "activation": {
        "prelu": (),
        "relu": ("model.options.activation=relu",),
        "rprelu": ("model.options.activation=rprelu",),
        "hardtanh": ("model.options.activation=hardtanh",),
        "identity": ("model.options.activation=identity",),
    },
    "downsampling": {"binary": (), "real": ("model.options.downsample=real",)},
    "shortcut": {"block": (), "conv": ("model.options.shortcut=conv",)},
    "padding value": {
        "0": (),
        "-1": ("model.options.padding_value=-1",),
        "+1": ("model.options.padding_value=1",),
    },
    "weight decay on scales": {"off": (), "on": ("optimizer.decay_scales=true",)},
}
# factor -> the level that networks and recipes have by default since: what clearly gained, else what it was.
# Two measurements on 10,000 images differ by up to 1.3 points by chance.
ABLATION_CHOICES = {
    "start of the scale": "analytic",
    "activation": "prelu",
    "downsampling": "real",
    "shortcut": "conv",
    "padding value": "0",
    "weight decay on scales": "off",
}
# The second round starts from what the first one chose and asks again what made no clear difference.
# level -> settings
CHOSEN = tuple(setting for factor, level in ABLATION_CHOICES.items() for setting in ABLATION[factor][level])
SECOND_ROUND: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "calibrated": ("model.calibrate=true",),
    "rprelu": ("model.options.activation=rprelu",),
    "decay on scales": ("optimizer.decay_scales=true",),
}

# What resnet20's recipe is chosen from, on held-out images: name -> settings laid over what it was before
# the trials, TRIAL_BASE.
TRIAL_BASE = ("data.batch_size=256",)
TRIAL_CHOICE = "batch-128"  # what the recipe has since
TRIAL_EPOCHS = 40
TRIAL_TEACHER_EPOCHS = 25
TRIALS: dict[str, tuple[str, ...]] = {
    "default": (),
    "no-teacher": ("loss.distill_weight=0.0",),
    "half-teacher": ("loss.distill_weight=0.5",),
    "temperature-1": ("loss.temperature=1.0",),
    "temperature-2": ("loss.temperature=2.0",),
    "lr-0.001": ("optimizer.lr=0.001",),
    "lr-0.004": ("optimizer.lr=0.004",),
    "lr-0.008": ("optimizer.lr=0.008",),
    "batch-128": ("data.batch_size=128",),
    "weight-decay-1e-5": ("optimizer.weight_decay=1e-5",),
    "two-stages": ("schedule.first_stage_epochs=15",),
    "centred-weights": ("model.options.center_weights=true",),
    "clipped-weights": ("model.options.clip_weights=true",),
    "rprelu": ("model.options.activation=rprelu",),
    "polynomial": ("model.options.surrogate=polynomial",),
    "tanh": ("model.options.surrogate=tanh", "model.options.weight_surrogate=tanh"),
    "case1": ("model.scale=channel",),
    "block-shortcut": ("model.options.shortcut=block",),
    "binary-downsampling": ("model.options.downsample=binary",),
}

# The real-valued networks that are trained as suits them (`recipes/baseline.toml`).
BASELINES = ("cifar10-resnet18", "cifar10-resnet20", "cifar100-resnet18", "tiny-imagenet-resnet18")
OWN_TEACHERS = ("tiny-imagenet", "cifar100")  # where the baseline is not the teacher
LATER_BASELINES = ("cifar10-reactnet-a",)  # shown once they are measured
TAUGHT = ("cifar10-resnet20",)  # baselines that are trained with their students' teacher too
# The binary networks that learn from them (`recipes/student.toml`), with the number of seeds of each.
STUDENTS = {"cifar10-resnet20": 3, "cifar10-resnet18": 3, "cifar100-resnet18": 1, "tiny-imagenet-resnet18": 1,
            "cifar10-reactnet-a": 1}  # fmt: skip


def parts_of(name: str) -> tuple[str, str]:
    """The data set, with hyphens, and the network in the name of a baseline or student."""
    known = [one.replace("_", "-") for one in DATASETS]
    dataset = next(one for one in known if name.startswith(one + "-"))
    return dataset, name.removeprefix(dataset + "-")


def plan(experiments: tuple[str, ...] = EXPERIMENTS[:4], datasets: tuple[str, ...] = DATASETS) -> list[Run]:
    """The runs of these experiments on these data sets, in the order in which they should be done; Table 3
    has the rows that it shares with Table 1 too, one seed.
    """
    for name in experiments:
        if name not in EXPERIMENTS:
            raise ValueError(f"`experiments` (={name!r}) must be of {', '.join(EXPERIMENTS)}")
    for name in datasets:
        if name not in DATASETS:
            raise ValueError(f"`datasets` (={name!r}) must be of {', '.join(DATASETS)}")
    rows = TABLE3_ROWS if "table3" in experiments else ()
    shared = {table1("tiny_imagenet", row, 0).key for row in rows}
    found = [
        run
        for run in _in_order()
        if (run.experiment in experiments or run.key in shared) and run.dataset in datasets
    ]
    return list({run.key: run for run in found}.values())


def _in_order() -> Iterator[Run]:
    for name in SHIPPED:
        yield from shipped(name)
    for seed in SEEDS:
        for row in FIRST_ROWS:
            yield table1("tiny_imagenet", row, seed)
    for seed in MORE_SEEDS:
        for row in CLAIM_ROWS:
            yield table1("tiny_imagenet", row, seed)
    for row in FIRST_ROWS:
        yield table1("cifar10", row, 0)
    for seed in SEEDS:
        for row in OTHER_ROWS:
            yield table1("tiny_imagenet", row, seed)
    for row in OTHER_ROWS:
        yield table1("cifar10", row, 0)
    yield from table3()
    yield from ablation()
    yield from trials()
    yield from claim()
    yield from short()
    yield from enlarged()
    yield from table3_revised()
    yield from baselines()
    yield from levers()
    yield from students()


def shipped(name: str) -> Iterator[Run]:
    """The real-valued baseline, then the binary network. A resnet18's teacher is its baseline; the small
    resnet20 learns from that of resnet18, which knows more.
    """
    dataset = "cifar10" if name.startswith("cifar10") else "tiny_imagenet"
    network = name.rsplit("-", 1)[1]
    facts = (("name", name),)
    baseline = Run("shipped", "real", dataset, network, f"best-{name}-real", facts=facts)
    yield baseline
    teacher = replace(baseline, network="resnet18").key
    yield Run("shipped", "best", dataset, network, f"best-{name}", teacher=teacher, facts=facts)


def table1(dataset: str, row: str, seed: int) -> Run:
    family = "tiny-imagenet-table1" if dataset == "tiny_imagenet" else "cifar10-table1"
    return Run("table1", row, dataset, "resnet18", f"{family}-{row}", seed)


def table3() -> Iterator[Run]:
    """What Table 1 does not have already (`TABLE3_ROWS`): Bethge et al., and AlexNet."""
    yield Run("table3", "bethge", "tiny_imagenet", "resnet18", "tiny-imagenet-table1-bethge")
    for row in TABLE3_ROWS:
        yield Run("table3", row, "tiny_imagenet", "alexnet", f"tiny-imagenet-alexnet-{row}")


def ablation() -> Iterator[Run]:
    """Case 4 with one thing changed at a time, the start once; then again from what that chose."""
    settings = (
        f"data.holdout={HOLDOUT}",
        f"schedule.epochs={ABLATION_EPOCHS}",
        "schedule.name=cosine",
    )
    recipe = "tiny-imagenet-table1-case4"
    for factor, levels in ABLATION.items():
        for level, changes in levels.items():
            facts = (("factor", factor), ("level", level), ("default", not changes))
            row = f"{factor} {level}".replace(" ", "-") if changes else "default"
            yield Run(
                "ablation", row, "tiny_imagenet", "resnet18", recipe, 0, settings + changes, facts=facts
            )
    for level, changes in SECOND_ROUND.items():
        facts = (("factor", "second round"), ("level", level), ("default", False))
        row = f"second round {level}".replace(" ", "-")
        yield Run(
            "ablation", row, "tiny_imagenet", "resnet18", recipe, 0, settings + CHOSEN + changes, facts=facts
        )


def trials() -> Iterator[Run]:
    """The choices of the best recipe: teachers that never saw the held-out images, then each change."""
    held = f"data.holdout={HOLDOUT}"
    teachers = {
        network: Run(
            "trial", "teacher", "cifar10", network, f"best-cifar10-{network}-real", 0,
            (held, f"schedule.epochs={TRIAL_TEACHER_EPOCHS}"),
        )
        for network in ("resnet18", "resnet20")
    }  # fmt: skip
    yield from teachers.values()
    base = (held, f"schedule.epochs={TRIAL_EPOCHS}", *TRIAL_BASE)
    recipe = "best-cifar10-resnet20"
    for row, changes in TRIALS.items():
        teacher = None if row == "no-teacher" else teachers["resnet18"].key
        yield Run("trial", row, "cifar10", "resnet20", recipe, 0, base + changes, teacher)
    yield Run("trial", "own-teacher", "cifar10", "resnet20", recipe, 0, base, teachers["resnet20"].key)


def claim() -> Iterator[Run]:
    """E1: do learned scales beat analytic ones after the paper's 80 epochs? Seed by seed, so that a queue
    that is cut off leaves as many seeds of one row as of another.
    """
    for seed in CLAIM_SEEDS:
        for row in COMPARED_ROWS:
            yield replace(table1("tiny_imagenet", row, seed), experiment="claim", settings=MEASURED)


def short() -> Iterator[Run]:
    """E2: the same after 3, 10 and 25 epochs, where training is as far from its end as on ImageNet.

    The schedule keeps the paper's shape: the learning rate is divided by 10 after 25/80, 50/80 and 75/80 of
    the steps, which for a short run lie inside epochs (`schedule.step_epochs` of 0.9375, 3.125 and 7.8125).
    """
    for epochs in SHORT_EPOCHS:
        settings = (f"schedule.epochs={epochs}", f"schedule.step_epochs={epochs * 25 / 80}", *MEASURED)
        for seed in SHORT_SEEDS:
            for row in SHORT_ROWS:
                run = table1("tiny_imagenet", row, seed)
                yield replace(run, experiment="short", settings=settings, epochs=epochs)


def enlarged() -> Iterator[Run]:
    """E3: 80 epochs at 224 pixels, so that feature maps are 56 to 7 pixels as on ImageNet and the factors of
    rows and columns have something to learn; and one Case 4 with the default block.

    Images are cropped and flipped at 64 pixels, with the same padding as there, and enlarged batch by batch
    on the device: the whole set at 224 pixels would be 15 GB for each run. The network with the default block
    ships, so a hundredth of the images is held out of its training: its temperature is fitted on them.
    """
    settings = (f"data.size={ENLARGED_SIZE}", "data.enlarge=batch", *MEASURED)
    for seed in ENLARGED_SEEDS:
        for row in ENLARGED_ROWS:
            yield replace(table1("tiny_imagenet", row, seed), experiment="enlarged", settings=settings)
    block = ("model.options.shortcut=conv", "model.options.downsample=real", ENLARGED_HOLDOUT)
    run = table1("tiny_imagenet", "case4", ENLARGED_SEEDS[0])
    yield replace(run, experiment="enlarged", row="case4-default-block", settings=(*settings, *block))


def table3_revised() -> Iterator[Run]:
    """Table 3 again, one seed each: Bethge et al. with a batch norm after each convolution, as in their
    public network; AlexNet, with XNOR-Net without K.

    AlexNet's dropout stands before batch norms, whose running statistics are therefore those of thinned
    inputs. Here they are measured again, without dropout as `measure_statistics` always does.
    """
    bethge = Run("table3-revised", "bethge", "tiny_imagenet", "resnet18", "tiny-imagenet-table1-bethge")
    yield replace(bethge, seed=REVISED_SEED, settings=("model.options.norm_after=true", *MEASURED))
    settings = (REVISED_BATCHES, "run.eval_train=true")
    for row in REVISED_ROWS:
        recipe = f"tiny-imagenet-alexnet-{row}"
        yield Run("table3-revised", row, "tiny_imagenet", "alexnet", recipe, REVISED_SEED, settings)


def baselines() -> Iterator[Run]:
    """The real-valued networks, trained by SGD, measured on the test set once."""
    yield from map(_baseline, BASELINES)
    yield from map(_teacher, OWN_TEACHERS)
    yield from map(_baseline, LATER_BASELINES)
    yield from map(_taught, TAUGHT)


def _taught(name: str) -> Run:
    """The baseline with the teacher of its students."""
    recipe = f"baseline-{name}-taught"
    return replace(_baseline(name), row="taught", recipe=recipe, teacher=_baseline("cifar10-resnet18").key)


def _baseline(name: str) -> Run:
    dataset, network = parts_of(name)
    return Run("baseline", "real", dataset.replace("-", "_"), network, f"baseline-{name}")


def _teacher(dataset: str) -> Run:
    """A network that teaches better than the baseline: on Tiny-ImageNet without pooling, on CIFAR-100 without
    mixup.
    """
    recipe = f"baseline-{dataset}-resnet18-teacher"
    return Run("baseline", "teacher", dataset.replace("-", "_"), "resnet18", recipe)


def students() -> Iterator[Run]:
    """The binary networks, seed by seed, measured on held-out images; packing reads the test set."""
    for seed in SEEDS:
        for name, seeds in STUDENTS.items():
            if seed >= seeds:
                continue
            dataset, network = parts_of(name)
            teacher = Run("baseline", "real", dataset, "resnet18", "").key
            if dataset in OWN_TEACHERS:
                teacher = _teacher(dataset).key
            yield Run(
                "student", "binary", dataset.replace("-", "_"), network, f"student-{name}", seed,
                teacher=teacher, facts=(("name", name),),
            )  # fmt: skip


def quick(run: Run) -> Run:
    """The same row in seconds, for a look: the small network on the digits that come with scikit-learn.

    It shows the way from command to table; its accuracies mean nothing for the paper.
    """
    from xnorpp.models import PAPER_BLOCK

    method = {"bnn": "bnn", "bethge": "bnn", "real": "real", "xnor": "xnor", "xnor-alpha": "xnor"}.get(
        run.row, "xnor++"
    )
    scale = {
        "xnor": "alpha_k",
        "xnor-alpha": "alpha",
        "case1": "channel",
        "case2": "dense",
        "case3": "channel_spatial",
    }.get(run.row, "default")
    kept = tuple(
        s
        for s in run.settings
        if s.startswith(("model.options.", "optimizer.", "model.calibrate", "data.holdout", "run.eval_train"))
    )
    paper = run.experiment not in ("shipped", "trial", "baseline", "lever", "student") and run.row != "bethge"
    block = tuple(f"model.options.{key}={value}" for key, value in PAPER_BLOCK.items()) if paper else ()
    settings = (f"model.method={method}", f"model.scale={scale}", "schedule.epochs=2", *block, *kept)
    facts = (*run.facts, ("quick", True))
    return replace(run, recipe="digits-small-case4", settings=settings, facts=facts)
