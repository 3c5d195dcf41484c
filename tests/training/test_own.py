"""Own networks and own data through `train` and `evaluate`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import xnorpp
from xnorpp.cli.main import main
from xnorpp.convert import unbinarize
from xnorpp.data import DatasetError, load_dataset
from xnorpp.models import create_model
from xnorpp.nn import BinaryConv2d
from xnorpp.training import Recipe, RecipeError, evaluate, load_checkpoint, load_model, network, train
from xnorpp.training.packing import pack_checkpoint
from xnorpp.training.recipe.library import as_recipe
from xnorpp.training.state.checkpoint import FINAL_NAME, CheckpointError, list_checkpoints

QUICK = {
    "schedule": {"epochs": 2, "max_steps": 6},
    "data": {"batch_size": 16},
    "run": {"log_steps": 1, "tensorboard": False, "save_steps": 2},
    "model.name": "small",
    "model.options": {"width": 4},
}
DIGITS = load_dataset("digits")
IMAGES, LABELS = DIGITS.images[:64], DIGITS.labels[:64]
HALF = (IMAGES[:48], LABELS[:48]), (IMAGES[48:], LABELS[48:])


class Net(nn.Module):
    """A user's network, in which one layer is binary."""

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.binary = BinaryConv2d(8, 8, 3, padding=1, scale="channel")
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.binary(self.norm(self.stem(x))).mean((2, 3)))
        return out


class Digits(Dataset[Any]):
    """A user's data set with augmentation that draws from all three global generators."""

    classes = tuple("0123456789")

    def __init__(self, first: int, last: int, noise: bool = True) -> None:
        self.range, self.noise = range(first, last), noise

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, index: int) -> tuple[Tensor, np.int64]:
        image = torch.from_numpy(IMAGES[self.range[index], :, :, 0].astype(np.float32) / 255)[None]
        if self.noise:
            image = image.roll(random.randint(-1, 1), 1) + 0.1 * torch.randn(image.shape)
            image = image * np.random.uniform(0.8, 1.2)  # noqa: NPY002
        return image, LABELS[self.range[index]]


def table(**changes: Any) -> dict[str, Any]:
    return {**QUICK, **changes}


def test_names_of_the_package() -> None:
    assert xnorpp.train is train
    assert xnorpp.evaluate is evaluate
    assert callable(xnorpp.load_dataset)


def test_a_recipe_may_be_a_table_or_nothing() -> None:
    assert as_recipe(None) == Recipe()
    recipe = as_recipe({"extends": "digits-small-case4", "optimizer.lr": 0.5, "schedule": {"epochs": 3}})
    assert (recipe.optimizer.lr, recipe.schedule.epochs, recipe.model.name) == (0.5, 3, "small")
    assert as_recipe(recipe) is recipe
    with pytest.raises(RecipeError, match=r"`optimizer.rate` is not a recipe key; did you mean"):
        as_recipe({"optimizer.rate": 1})
    with pytest.raises(TypeError, match="`recipe` is int; a name, a file, a table"):
        as_recipe(3)  # type: ignore[arg-type]


def test_own_module_on_own_arrays(tmp_path: Path) -> None:
    net = Net()
    before = net.head.weight.detach().clone()
    summary = train(QUICK, model=net, train_data=HALF[0], test_data=HALF[1], out=tmp_path, quiet=True)
    assert not torch.equal(before, net.head.weight)
    assert net.training
    assert summary["recipe"]["model"]["name"] == summary["recipe"]["data"]["dataset"] == "own"
    assert summary["model"] == {
        "name": "own", "module": f"{__name__}.Net", "in_channels": 1, "input_size": [8, 8], "num_classes": 10,
    }  # fmt: skip
    assert summary["classes"] == list("0123456789")
    assert summary["preprocess"]["mean"] == [0.0]
    assert evaluate(net, HALF[1])["top1"] == summary["metrics"]["top1"]


class Block(nn.Module):
    """A network as others write it, whose post-activation block trains fused on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.after = BinaryConv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.biased, self.last = BinaryConv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.after(self.conv(x)) + x)
        x = self.last(self.biased(x.clone()))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def test_the_graph_pass_changes_no_number_and_no_name_and_is_undone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    same: Callable[[Any, Any], bool],
) -> None:
    """On the CPU the chains run layer by layer; a run that began without the pass may go on with it."""
    for name in ("plain", "fused", "resumed"):
        if name == "fused":
            monkeypatch.setattr(network, "why_not_fused", lambda run, device: None)
        if name == "resumed":
            shutil.copytree(tmp_path / "plain", tmp_path / name)
            (tmp_path / name / FINAL_NAME).unlink()
            list_checkpoints(tmp_path / name)[-1].unlink()
        torch.manual_seed(3)
        model = Block()
        given: dict[str, Any] = {"model": model, "train_data": HALF[0], "test_data": HALF[1]}
        train(QUICK, **given, out=tmp_path / name, resume=name == "resumed")
        assert not any("forward" in vars(module) for module in model.modules())
    said = capsys.readouterr().out
    assert said.count("2 of 3 chains of layers train on the fused path; the one at biased does not") == 2
    assert said.count("because the convolution has a bias") == 2
    plain, *others = (load_checkpoint(tmp_path / name).weights for name in ("plain", "fused", "resumed"))
    assert all(same(plain, other) for other in others)


def test_a_network_that_cannot_be_traced_trains_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Branching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    monkeypatch.setattr(network, "why_not_fused", lambda run, device: None)
    train(QUICK, model=Branching(), train_data=HALF[0], test_data=HALF[1], out=tmp_path)
    said = capsys.readouterr().out
    assert "1 binary layers do not (binary); the network cannot be traced (symbolically traced" in said


def test_what_a_run_must_be_for_the_fused_path() -> None:
    run, gpu = as_recipe({"run": {"amp": "bf16"}}).run, torch.device("cuda")
    assert network.why_not_fused(run, gpu) is None
    assert "need a GPU" in (network.why_not_fused(run, torch.device("cpu")) or "")
    assert "trains in 'bf16'" in (network.why_not_fused(as_recipe({}).run, gpu) or "")


def test_a_checkpoint_of_an_own_module_needs_it(tmp_path: Path) -> None:
    net = Net()
    train(QUICK, model=net, train_data=HALF[0], test_data=HALF[1], out=tmp_path, quiet=True)
    with pytest.raises(
        ValueError, match=r"Net, a module that was given to `train`; give it again: load_model"
    ):
        load_model(tmp_path)
    loaded, meta = load_model(tmp_path, model=Net())
    x = torch.zeros(1, 1, 8, 8)
    assert torch.equal(loaded(x), net.eval()(x))
    assert meta["model"]["name"] == "own"
    made, _ = load_model(tmp_path, model=lambda num_classes: Net(num_classes))
    assert torch.equal(made(x), net(x))
    with pytest.raises(CheckpointError, match=r"do not fit the network: `head.bias` has the shape \(10,\)"):
        load_model(tmp_path, model=Net(3))
    with pytest.raises(CheckpointError, match=r"the network has no `binary\.(bias|scale\.alpha)`"):
        load_model(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    real = Net()
    unbinarize(real)
    with pytest.raises(
        CheckpointError, match="`binary` is real-valued in the network and binary in the check"
    ):
        load_model(tmp_path, model=real)
    pack_checkpoint(tmp_path, tmp_path / "own.xnor", model=Net())
    packed = xnorpp.load(tmp_path / "own.xnor")
    assert packed.labels == tuple("0123456789")


def test_a_function_that_makes_the_network_gets_what_it_names(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def build(num_classes: int, in_channels: int, input_size: Any = None) -> nn.Module:
        seen.update(num_classes=num_classes, in_channels=in_channels, input_size=input_size)
        return Net(num_classes, in_channels)

    runs = [
        train(QUICK, model=build, train_data=HALF[0], test_data=HALF[1], out=tmp_path / name, quiet=True)
        for name in "ab"
    ]
    assert seen == {"num_classes": 10, "in_channels": 1, "input_size": 8}
    assert runs[0]["metrics"] == runs[1]["metrics"]  # its first weights are seeded


def test_a_recipe_names_networks_and_data_sets_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_parts.py").write_text(
        "import numpy as np\nfrom torch import nn\n"
        "def data(split):\n    x = np.zeros((32, 6, 6, 1), np.uint8)\n    x[::2] = 200\n"
        "    return x, np.arange(32) % 2\n"
        "def net(num_classes, in_channels, hidden=4):\n"
        "    return nn.Sequential(nn.Conv2d(in_channels, hidden, 3), nn.Flatten(), "
        "nn.Linear(16 * hidden, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = table(
        **{"model.name": "own_parts:net", "model.options": {"hidden": 2}, "data.dataset": "own_parts:data"}
    )
    summary = train(recipe, out="run", quiet=True)
    assert summary["model"]["name"] == "own_parts:net"
    assert load_checkpoint("run").weights["0.weight"].shape[0] == 2
    with pytest.raises(ValueError, match="made by own_parts:net, which a checkpoint may not call by itself"):
        load_model("run")
    loaded, _ = load_model("run", model="own_parts:net")  # called with the recipe's options, as in training
    assert loaded[0].out_channels == 2  # type: ignore[index]
    assert main(["pack", "run", "-o", "own.xnor", "--network", "own_parts:net"]) == 0
    assert main(["eval", "run", "--network", "own_parts:net"]) == 0
    assert main(["eval", "own.xnor"]) == 0
    assert train(recipe, out="run", resume=True, quiet=True)["metrics"] == summary["metrics"]
    with pytest.raises(ValueError, match=r"`width` is not an option of 'own_parts:net'"):
        train({**recipe, "model.options": {"width": 2}}, out="other", quiet=True)


@pytest.mark.parametrize(
    "kind",
    [
        "dataset",
        "loader",
        "float arrays",
        "tensors",
        "workers",
        "holdout",
        "holdout and test",
        "recipe network",
    ],
)
def test_data_of_every_kind(tmp_path: Path, kind: str) -> None:
    recipe = table()
    model: Any = Net()
    train_data: Any = Digits(0, 48)
    test_data: Any = Digits(48, 64, noise=False)
    if kind == "loader":
        recipe["run"] = {**QUICK["run"], "save_steps": 0}  # type: ignore[dict-item]
        train_data, test_data = DataLoader(train_data, 12, shuffle=True), DataLoader(test_data, 5)
    elif kind == "float arrays":
        train_data, test_data = ((x[..., 0][:, None] / 255, y) for x, y in HALF)
    elif kind == "tensors":
        train_data, test_data = (
            TensorDataset(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)) for x, y in HALF
        )
    elif kind == "workers":
        recipe["data"] = {"batch_size": 16, "workers": 2}
    elif kind == "holdout":
        recipe["data"], test_data = {"batch_size": 16, "holdout": 0.25}, None
    elif kind == "holdout and test":
        recipe["data"] = {"batch_size": 16, "holdout": 0.25, "evaluate": "test"}
    elif kind == "recipe network":
        model = None
    summary = train(recipe, model=model, train_data=train_data, test_data=test_data, out=tmp_path, quiet=True)
    assert summary["step"] == (4 if kind.startswith("holdout") else 6)
    assert 0 <= summary["metrics"]["top1"] <= 100
    expected = {"loader": 4, "holdout": 2, "holdout and test": 2}.get(kind, 3)
    assert summary["steps_per_epoch"] == expected
    assert summary["recipe"]["data"]["batch_size"] == (12 if kind == "loader" else 16)
    assert (summary["preprocess"] is not None) == (kind == "tensors")
    if kind == "recipe network":
        assert load_model(tmp_path)[0].config["num_classes"] == 10  # type: ignore[index]


def test_mean_and_std_of_the_recipe_normalise_own_pixels(tmp_path: Path) -> None:
    recipe = table(data={"batch_size": 16, "mean": [0.25], "std": [0.5]})
    net = Net()
    summary = train(recipe, model=net, train_data=HALF[0], test_data=HALF[1], out=tmp_path, quiet=True)
    assert (summary["preprocess"]["mean"], summary["preprocess"]["std"]) == ([0.25], [0.5])
    loss = evaluate(net, HALF[1], preprocess=summary["preprocess"])["loss"]
    assert loss == pytest.approx(summary["metrics"]["loss"], rel=1e-5)
    x = (HALF[1][0].transpose(0, 3, 1, 2) / 255 - 0.25) / 0.5
    assert evaluate(net, (x, HALF[1][1]))["loss"] == pytest.approx(summary["metrics"]["loss"], rel=1e-5)


def test_a_folder_is_data_too(tmp_path: Path) -> None:
    from PIL import Image

    for split, (images, labels) in zip(("train", "val"), HALF):
        for number, (image, label) in enumerate(zip(images, labels)):
            place = tmp_path / "own" / split / f"digit {label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[:, :, 0]).save(place / f"{number}.png")
    recipe = table(data={"batch_size": 16, "channels": 1})
    summary = train(recipe, model=Net, train_data=tmp_path / "own", out=tmp_path / "run", quiet=True)
    assert summary["recipe"]["data"]["dataset"] == "folder"
    assert summary["classes"] == [f"digit {n}" for n in range(10)]
    pack_checkpoint(tmp_path / "run", tmp_path / "own.xnor", model=Net)
    assert xnorpp.load(tmp_path / "own.xnor").labels == tuple(summary["classes"])
    trained, _ = load_model(tmp_path / "run", model=Net)
    found = evaluate(trained, tmp_path / "own", preprocess=summary["preprocess"])
    assert found["loss"] == pytest.approx(summary["metrics"]["loss"])
    apart = train(
        recipe, model=Net, train_data=tmp_path / "own" / "train", test_data=tmp_path / "own" / "val",
        out=tmp_path / "apart", quiet=True,
    )  # fmt: skip
    assert apart["metrics"] == summary["metrics"]
    with pytest.raises(RecipeError, match="is one tree of classes, the same for training and testing"):
        train(recipe, model=Net, train_data=tmp_path / "own" / "val", out=tmp_path / "x", quiet=True)


class Stops(RuntimeError):
    pass


@pytest.mark.parametrize("kind", ["dataset", "workers", "loader"])
def test_a_stopped_run_resumes_with_the_same_bits(
    tmp_path: Path, kind: str, same: Callable[[Any, Any], bool]
) -> None:
    """A loader at the start of an epoch, anything indexable inside one."""
    stop = [99]

    class Digits_(Digits):
        def __getitem__(self, index: int) -> Any:
            stop[0] -= 1
            if stop[0] < 0:
                raise Stops
            return super().__getitem__(index)

    def run(out: str, **more: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        data: Any = Digits_(0, 48)
        recipe = table()
        if kind == "loader":
            data = DataLoader(data, 16, shuffle=True)
            recipe["run"] = {**QUICK["run"], "save_steps": 0}  # type: ignore[dict-item]
        recipe["data"] = {"batch_size": 16, "workers": 2 if kind == "workers" else 0}
        return train(
            recipe, model=Net, train_data=data, test_data=Digits(48, 64, noise=False),
            out=tmp_path / out, quiet=True, **more,
        )  # fmt: skip

    if kind == "workers":  # the processes count by themselves, so the run is stopped by its length instead
        stop[0] = 10**6
        whole = run("whole")
        run("parts")
        for path in (tmp_path / "parts").glob("checkpoints/step-*6.safetensors"):
            path.unlink()
    else:
        stop[0] = 10**6
        whole = run("whole")
        stop[0] = 1 + 16 * 4 + 5 + (16 if kind == "loader" else 0)
        with pytest.raises(Stops):
            run("parts")
        stop[0] = 10**6
    random.seed(77)
    again = run("parts", resume=True)
    weights = [load_checkpoint(tmp_path / name).weights for name in ("whole", "parts")]
    assert same(*weights)
    assert again["metrics"] == whole["metrics"]


def test_other_data_or_another_network_is_not_resumed_with(tmp_path: Path) -> None:
    train(QUICK, model=Net, train_data=HALF[0], test_data=HALF[1], out=tmp_path, quiet=True)
    with pytest.raises(RecipeError, match="gives 4 steps per epoch here and gave 3 in the run"):
        train(QUICK, model=Net, train_data=(IMAGES, LABELS), test_data=HALF[1], out=tmp_path, resume=True)
    with pytest.raises(RecipeError, match=r"`data\.dataset` is 'digits' here and 'own' in the run"):
        train(QUICK, model=Net, out=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="do not fit the network"):
        train(
            QUICK, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), train_data=HALF[0],
            test_data=HALF[1], out=tmp_path, resume=True,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"test_data": HALF[1]}, "`test_data` needs `train_data`"),
        ({"train_data": HALF[0]}, "`test_data` must be given with `train_data`, or a share to hold out"),
        ({"train_data": HALF[0], "test_data": HALF[1], "data": "x"}, "`data` is for the recipe's data set"),
        ({"train_data": HALF[0], "test_data": HALF[1], "download": True}, "`download` is for the recipe's"),
        ({"train_data": HALF[0], "test_data": HALF[1], "model": 3}, "`model` is int; give an nn.Module"),
        (
            {"train_data": HALF[0], "test_data": HALF[1], "model": lambda: 3},
            "returned int; it must return an nn.Module",
        ),
        (
            {"train_data": HALF[0], "test_data": HALF[1], "model": nn.Flatten(0)},
            "The network returns (128,) for a batch of 2; it must return a tensor of shape (2, classes)",
        ),
        (
            {"train_data": HALF[0], "test_data": HALF[1], "model": Net(channels=3)},
            "The network fails on a batch of shape (2, 1, 8, 8): Given groups=1",
        ),
        (
            {"train_data": HALF[0], "test_data": HALF[1], "model": Net(4)},
            "The network has 4 outputs and the training data 10 classes",
        ),
        (
            {"train_data": HALF[0], "test_data": (IMAGES[:, :4], LABELS), "model": Net()},
            "The training data has samples of shape (1, 8, 8) and the test data (1, 4, 8)",
        ),
        (
            {"train_data": [(IMAGES[0], 0)] * 20, "test_data": HALF[1], "model": None},
            "The network 'small' needs to know more of `train_data`: the number of classes is missing",
        ),
        (
            {"train_data": DataLoader(Digits(0, 48)), "test_data": HALF[1], "model": Net()},
            "`run.save_steps` (=2) must be 0: `train_data` is a loader",
        ),
        (
            {"train_data": HALF[0], "classes": ["a", "b"], "test_data": HALF[1]},
            "`classes` (=['a', 'b']) must be a list of at least 10 names",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        train(QUICK, out=tmp_path, quiet=True, **{"model": Net, **given})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_beyond_the_outputs_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    pairs = [(image, int(label)) for image, label in zip(*HALF[0])]
    with pytest.raises(DatasetError, match=r"`train_data` has the label \d; the network has 5 outputs"):
        train(QUICK, model=Net(5), train_data=pairs, test_data=pairs, out=tmp_path, quiet=True)


def test_images_that_are_not_square(tmp_path: Path) -> None:
    """Their shape travels into the packed file too."""
    wide = [(np.repeat(images, 2, axis=2), labels) for images, labels in HALF]
    summary = train(QUICK, model=Net, train_data=wide[0], test_data=wide[1], out=tmp_path, quiet=True)
    assert summary["model"]["input_size"] == [8, 16]
    assert (summary["preprocess"]["resize"], summary["preprocess"]["crop"]) == ([8, 16], [8, 16])
    net, meta = load_model(tmp_path, model=Net)
    found = evaluate(net, wide[1], preprocess=meta["preprocess"])
    assert found["loss"] == pytest.approx(summary["metrics"]["loss"])
    pack_checkpoint(tmp_path, tmp_path / "wide.xnor", model=Net)
    scores = xnorpp.load(tmp_path / "wide.xnor")(wide[1][0])
    assert 100 * (scores.argmax(1) == wide[1][1]).mean() == pytest.approx(summary["metrics"]["top1"], abs=7)


def test_a_function_that_a_recipe_names_may_take_the_binarization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a registered network does: one contract, with or without registration."""
    (tmp_path / "own_options.py").write_text(
        "from torch import nn\nfrom xnorpp import BinaryConv2d\n"
        "def net(num_classes, in_channels, options):\n"
        "    conv = BinaryConv2d(4, 4, 3, config=options.binarization, output_size=(4, 4))\n"
        "    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), conv, nn.Flatten(), "
        "nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = table(**{"model.name": "own_options:net", "model.options": {}, "model.scale": "channel"})
    train(recipe, train_data=HALF[0], test_data=HALF[1], out="run", quiet=True)
    loaded, _ = load_model("run", model="own_options:net")
    assert loaded[2].weight.shape == (4, 4, 3, 3)  # type: ignore[index]


def test_names_of_own_data_travel(tmp_path: Path) -> None:
    names = [f"digit {n}" for n in range(10)]
    summary = train(QUICK, train_data=HALF[0], test_data=HALF[1], classes=names, out=tmp_path, quiet=True)
    assert summary["classes"] == names


def test_lazy_modules_get_their_shapes_before_the_optimiser(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(10))

    train(QUICK, model=build(), train_data=HALF[0], test_data=HALF[1], out=tmp_path, quiet=True)
    again = train(
        QUICK, model=build(), train_data=HALF[0], test_data=HALF[1], out=tmp_path, resume=True, quiet=True
    )
    assert again["step"] == 6
    assert load_model(tmp_path, model=build())[0][2].weight.shape == (10, 144)  # type: ignore[index]


@pytest.mark.parametrize("kind", ["arrays", "dataset", "loader", "ours", "batches"])
def test_evaluate_takes_data_of_every_kind(kind: str) -> None:
    torch.manual_seed(0)
    model = create_model("small", input_size=8, in_channels=1, width=4).eval()
    x = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(LABELS)
    with torch.no_grad():
        right = 100 * float((model(x).argmax(1) == labels).float().mean())
    data: Any = {
        "arrays": (IMAGES, LABELS),
        "dataset": Digits(0, 64, noise=False),
        "loader": DataLoader(TensorDataset(x, labels), 10),
        "ours": xnorpp.data.as_dataset((IMAGES, LABELS)),
        "batches": DataLoader(TensorDataset(torch.from_numpy(IMAGES), labels), 7),
    }[kind]
    found = evaluate(model, data)
    assert (found["images"], found["top1"]) == (64, pytest.approx(right))
    with pytest.raises(TypeError, match="`data` is a dictionary"):
        evaluate(model, {})
