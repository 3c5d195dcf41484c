"""The measurement harness: fair turns, honest checks, complete rows. No time is asserted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.bench import (
    CannotMask,
    avx2,
    bench_layers,
    compare,
    describe_machine,
    measure_commands,
    measure_startup,
    measure_throughput,
)
from xnorpp.bench.compare import OURS, Comparison, Result
from xnorpp.bench.engine import Engine, Unavailable, random_images
from xnorpp.bench.layers import chain_program, make_chain
from xnorpp.bench.plot import plot
from xnorpp.bench.real_layers import RealChain, bench_real_layers, layer, openvino_real, real_program
from xnorpp.bench.report import (
    commands_rows,
    commands_text,
    comparison_rows,
    comparison_text,
    complete,
    layers_rows,
    layers_text,
    machine_text,
    startup_rows,
    startup_text,
    throughput_rows,
    throughput_text,
)
from xnorpp.inspect.stopwatch import Spread
from xnorpp.runtime import Program, load, write
from xnorpp.runtime.format.preprocess import normalise
from xnorpp.runtime.reference import run
from xnorpp.training.records.record import append_rows

ROW_KEYS = {"name", "value", "unit", "engine", "threads", "batch", "model", "seed", "commit", "hardware"}


@pytest.fixture(scope="module")
def small_program() -> Program:
    import torch

    from xnorpp.models import create_model
    from xnorpp.packing import pack_program as pack

    torch.manual_seed(0)
    model = create_model("small", input_size=16, width=8, in_channels=1).eval()
    preprocess = {"resize": 16, "crop": 16, "mean": [0.3], "std": [0.4], "channels": 1}
    return pack(model, 16, preprocess=preprocess, meta={"model": model.config})


def spread(milliseconds: float) -> Spread:
    return Spread.of([milliseconds / 1e3 * factor for factor in (0.9, 1.0, 1.1)])


def made_up() -> Comparison:
    rows = [
        (OURS, "one bit", 1, 6.0), (OURS, "one bit", 2, 3.2), ("openvino int8", "int8", 1, 20.0),
        ("torch eager", "fp32", 1, 70.0), ("openvino fp32", "fp32", 1, 40.0),
        ("openvino fp32", "fp32", 2, 20.0),
    ]  # fmt: skip
    results = tuple(Result(e, p, t, spread(ms), spread(ms * 0.9)) for e, p, t, ms in rows)
    return Comparison("net", 1, "avx2", 3_500_000, results)


def test_ratios_are_against_the_fastest() -> None:
    found = made_up()
    fastest = found.fastest("fp32", 1)
    assert fastest is not None
    assert fastest.engine == "openvino fp32"
    assert found.speedup("fp32", 1) == pytest.approx(40 / 6)
    assert found.speedup("int8", 1) == pytest.approx(20 / 6)
    assert found.speedup("int8", 2) is None
    assert found.scaling(OURS, 1, 2) == pytest.approx(6 / 3.2)
    text = comparison_text(found)
    assert "6.67 times" in text
    assert "2 threads against 1: xnorpp 1.88, openvino fp32 2.00" in text


def test_the_gain_of_a_thread_is_reported_by_the_distance_of_the_cores() -> None:
    alone, pair = Spread.of([6.0e-3] * 20), Spread.of([3.5e-3] * 12, near=[3.2e-3] * 7, far=[4.0e-3] * 5)
    results = (Result(OURS, "one bit", 1, alone, alone), Result(OURS, "one bit", 2, pair, pair))
    found = Comparison("net", 1, "avx2", 3_500_000, results)
    text = comparison_text(found)
    assert "xnorpp 1.88x in the 7 of 12 calls with the cores within 100 ns of each other" in text
    assert "xnorpp 1.50x in the 5 of 12 calls with the cores more than 100 ns apart" in text
    row = next(row for row in comparison_rows(found) if row["name"] == "thread_scaling")
    assert (row["near"], row["near_calls"]) == (pytest.approx(6 / 3.2), 7)
    assert (row["far"], row["far_calls"]) == (pytest.approx(1.5), 5)
    unknown = comparison_rows(made_up())
    assert [row["far"] for row in unknown if row["name"] == "thread_scaling"] == [None, None]
    assert "cores" not in comparison_text(made_up())


def test_rows_carry_everything(tmp_path: Path) -> None:
    rows = complete(comparison_rows(made_up()), seed=0)
    for row in rows:
        assert set(row) >= ROW_KEYS
    assert {row["name"] for row in rows} == {
        "latency_uint8", "latency_float32", "speedup_fp32", "speedup_int8", "thread_scaling", "file_size",
    }  # fmt: skip
    append_rows(tmp_path / "deep" / "rows.jsonl", rows)
    append_rows(tmp_path / "deep" / "rows.jsonl", rows[:1])
    lines = (tmp_path / "deep" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [*rows, rows[0]]
    plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_compare_times_ours_alone(small_program: Program) -> None:
    found = compare(
        small_program, threads=(1,), batch=2, isa="reference", rounds=1, repeat=1, say=lambda line: None
    )
    assert [row.engine for row in found.results] == [OURS]
    assert found.isa == "reference"
    assert found.results[0].uint8.calls == 1
    with pytest.raises(ValueError, match="`batch`"):
        compare(small_program, batch=0, isa="reference")


def test_a_missing_peer_is_one_line(small_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.bench import peers

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    lines: list[str] = []
    found = compare(
        small_program, isa="reference", against=["onnxruntime"], rounds=1, repeat=1, say=lines.append
    )
    assert len(found.results) == 1
    (line,) = found.left_out
    assert "onnxruntime is not installed" in line
    assert "\n" not in line
    assert line in lines
    with pytest.raises(ValueError, match="must be among torch, onnxruntime, openvino"):
        peers.collect(None, ["tensorflow"], lines.append)  # type: ignore[arg-type]


def test_without_torch_ours_is_timed_alone(small_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run a network that torch makes; without it they are named and skipped."""

    def no_torch(program: Program) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(sys.modules["xnorpp.bench.compare"], "baseline_of", no_torch)
    found = compare(
        small_program,
        isa="reference",
        against=["torch", "openvino"],
        rounds=1,
        repeat=1,
        say=lambda line: None,
    )
    assert [row.engine for row in found.results] == [OURS]
    (line,) = found.left_out
    assert line.startswith("torch, openvino: skipped")


def test_a_peer_that_computes_something_else_is_not_timed(
    small_program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.bench import peers

    def liars(task: peers.Task):  # type: ignore[no-untyped-def]
        yield Engine("honest", "fp32", 1, lambda x: np.ones((len(x), 10)), lambda x: np.ones((len(x), 10)))
        yield Engine("liar", "fp32", 1, lambda x: np.zeros((len(x), 10)), lambda x: np.zeros((len(x), 10)))

    monkeypatch.setitem(peers.PEERS, "torch", liars)
    with pytest.raises(RuntimeError, match="liar does not compute the network"):
        compare(small_program, isa="reference", against=["torch"], rounds=1, repeat=1, say=lambda line: None)


def test_int8_that_saturates_is_left_out(small_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.bench import peers

    def engines(task: peers.Task):  # type: ignore[no-untyped-def]
        for name, precision, value in (("honest", "fp32", 1), ("near", "int8", 0.9), ("wrong", "int8", 3)):
            answer = np.full((1, 10), value, np.float32)
            yield Engine(name, precision, 1, lambda x, y=answer: y, lambda x, y=answer: y)

    monkeypatch.setitem(peers.PEERS, "torch", engines)
    found = compare(
        small_program, isa="reference", against=["torch"], rounds=1, repeat=1, say=lambda line: None
    )
    assert [row.engine for row in found.results] == [OURS, "honest", "near"]
    assert found.left_out == ("wrong: skipped, it does not compute the network it was given",)


def test_eager_torch_runs_the_twin(small_program: Program) -> None:
    from xnorpp.bench import peers
    from xnorpp.bench.compare import baseline_of

    twin = baseline_of(small_program)
    task = peers.Task(twin, small_program.input_shape, 2, (1,), small_program.mean, small_program.std)
    engine = next(peers.torch_engines(task))
    images = random_images(2, small_program.input_shape)
    floats = normalise(images, task.mean, task.std)
    np.testing.assert_allclose(engine.from_uint8(images), engine.from_float(floats), atol=1e-4)


def test_onnxruntime_takes_images_and_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    from xnorpp.bench import peers

    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)

    def export(twin: object, batch: int, shape: tuple[int, int, int], path: Path) -> None:
        nodes = [
            helper.make_node("Conv", ["input", "w"], ["y"]),
            helper.make_node("Flatten", ["y"], ["output"]),
        ]
        ends = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size)
            for name, size in (("input", [batch, *shape]), ("output", [batch, 4 * 36]))
        ]
        graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)

    monkeypatch.setattr(peers, "export_onnx", export)
    task = peers.Task(None, (3, 8, 8), 1, (1,), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    found = {engine.name: engine for engine in peers.onnxruntime_engines(task)}
    assert set(found) == {"onnxruntime fp32", "onnxruntime int8"}
    images = random_images(1, (3, 8, 8))
    floats = normalise(images, task.mean, task.std)
    windows = np.lib.stride_tricks.sliding_window_view(floats[0], (3, 3), axis=(1, 2))
    expected = np.einsum("ocij,chwij->ohw", weight, windows).reshape(1, -1)
    np.testing.assert_allclose(found["onnxruntime fp32"].from_float(floats), expected, atol=1e-3)
    np.testing.assert_allclose(found["onnxruntime fp32"].from_uint8(images), expected, atol=1e-3)
    loose = 0.1 * np.abs(expected).max()
    np.testing.assert_allclose(found["onnxruntime int8"].from_uint8(images), expected, atol=loose)


def test_the_baseline_of_a_resnet_has_its_multiply_adds() -> None:
    import torch

    from xnorpp.bench.networks import PostActivationResNet
    from xnorpp.inspect import inspect_network
    from xnorpp.models import create_model

    twin = inspect_network(PostActivationResNet((2, 2, 2, 2), 3, 1000), torch.zeros(1, 3, 224, 224))
    ours = inspect_network(create_model("resnet18", method="real"))
    work = [sorted(layer.geometry.multiply_adds for layer in found.layers) for found in (twin, ours)]
    assert work[0] == work[1]


def test_a_chain_is_the_same_in_openvino() -> None:
    pytest.importorskip("openvino")
    from xnorpp.bench.layers import openvino_chain

    chain = make_chain(64, 6, depth=3)
    try:
        peer, primitives = openvino_chain(chain, 1)
    except Unavailable as error:
        pytest.skip(str(error))
    assert len(primitives) == 3
    assert all(kind.startswith("jit") for kind in primitives)
    np.testing.assert_allclose(peer(chain.input()), run(chain_program(chain), chain.input()), atol=1e-6)


def test_layers_report(tmp_path: Path) -> None:
    found = bench_layers(
        isa="reference", against=False, rounds=1, repeat=1, shapes=((8, 6), (16, 3)), say=lambda line: None
    )
    assert [row.chain for row in found] == ["8@6", "16@3"]
    assert found[0].multiply_adds == 8 * 9 * 64 * 36
    assert "16@3" in layers_text(found)
    rows = complete(layers_rows(found, 1))
    assert all(set(row) >= ROW_KEYS for row in rows)
    plot(rows, tmp_path / "chains.svg")
    assert (tmp_path / "chains.svg").stat().st_size > 1000


def test_real_layers_report() -> None:
    stem = RealChain("stem", (3, 24, 24), (layer(8, 3, 7, 0, stride=2, pool=True),), from_bytes=True)
    depthwise = RealChain("depthwise", (8, 6, 6), tuple(layer(8, 1, 3, i, groups=8) for i in range(2)))
    found = bench_real_layers(
        against=False, rounds=1, repeat=1, chains=(stem, depthwise), say=lambda line: None
    )
    assert [row.multiply_adds for row in found] == [8 * 147 * 12**2, 2 * 8 * 9 * 6**2]
    assert "depthwise" in layers_text(found, real=True)
    rows = complete(layers_rows(found, 1, real=True))
    assert {row["name"] for row in rows} == {"real_chain_rate"}
    assert all(set(row) >= ROW_KEYS for row in rows)
    for chain in (stem, depthwise):
        program, x = real_program(chain), chain.input()
        np.testing.assert_allclose(load(program)(x), run(program, x), rtol=1e-5, atol=1e-5)


def test_real_layers_are_the_same_in_openvino() -> None:
    pytest.importorskip("openvino")
    chain = RealChain("depthwise", (8, 6, 6), tuple(layer(8, 1, 3, i, groups=8) for i in range(2)))
    try:
        peer, primitives = openvino_real(chain, 1)
    except Unavailable as error:
        pytest.skip(str(error))
    assert len(primitives) == 2
    np.testing.assert_allclose(peer(chain.input()), run(real_program(chain), chain.input()), atol=1e-5)


def test_startup_is_measured_without_torch(small_program: Program, tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    write(small_program, tmp_path / "small.xnor")
    found = measure_startup(tmp_path / "small.xnor", isa="reference", processes=1)
    assert not found.torch_imported
    assert found.peak_bytes > found.bare_bytes > 0
    assert found.seconds >= found.importing + found.loading
    assert "torch not imported" in startup_text(found)
    assert all(set(row) >= ROW_KEYS for row in complete(startup_rows(found, "small", 1)))


def test_commands_are_timed_from_a_cold_start(small_program: Program, tmp_path: Path) -> None:
    write(small_program, tmp_path / "small.xnor")
    found = measure_commands(tmp_path / "small.xnor", processes=1)
    assert list(found) == ["python -c pass", "import numpy", "xnorpp --help", "xnorpp predict"]
    assert all(one.elapsed.calls == 1 and one.elapsed.median > 0 for one in found.values())
    assert found["python -c pass"].processor.median < found["xnorpp predict"].processor.median
    assert "times numpy" in commands_text(found)
    assert all(set(row) >= ROW_KEYS for row in complete(commands_rows(found, "small")))


def test_throughput_counts_images_of_all_streams(small_program: Program) -> None:
    found = measure_throughput(small_program, title="small", batch=3, threads=1, streams=2, seconds=0.2)
    assert (found.batch, found.threads, found.streams) == (3, 1, 2)
    assert found.seconds >= 0.2
    assert found.rate == pytest.approx(found.calls * 3 / found.seconds)
    assert 0 < found.p50 <= found.p90 <= found.p99 <= found.slowest <= found.seconds + 1e-3
    text = throughput_text([found, replace(found, batch=1, calls=1)])
    assert f"fastest: {found.rate:,.1f} images per second with batch 3, threads 1, streams 2" in text
    rows = complete(throughput_rows([found]))
    assert all(set(row) >= ROW_KEYS for row in rows)
    assert set(rows[0]["latency_ms"]) == {"p50", "p90", "p99", "slowest"}
    with pytest.raises(ValueError, match=r"`streams` \(=0\)"):
        measure_throughput(small_program, streams=0)
    with pytest.raises(ValueError, match=r"`isa` \(='abacus'\)"):
        measure_throughput(small_program, isa="abacus", seconds=0.1)


def test_a_stream_that_fails_ends_the_measurement(
    small_program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.bench import throughput

    def wrong(*_: object, **__: object) -> np.ndarray[Any, Any]:
        return np.zeros((1, 2, 3), np.uint8)

    monkeypatch.setattr(throughput, "random_images", wrong)
    with pytest.raises(ValueError, match="`x` has shape"):
        throughput.measure_throughput(small_program, streams=3, seconds=30)


def test_percentiles_and_the_time_limit(small_program: Program) -> None:
    found = Spread.of([float(number) for number in range(101)])
    assert (found.median, found.p90, found.p99) == (50, 90, 99)
    start = time.monotonic()
    timed = compare(
        small_program, rounds=None, repeat=2, seconds=0.3, isa="reference", say=lambda line: None
    ).results[0]
    assert 0.3 <= time.monotonic() - start < 30
    assert timed.uint8.calls >= 4
    assert timed.uint8.p99 is not None
    assert timed.uint8.median <= timed.uint8.p99
    one = compare(small_program, repeat=1, seconds=1e-9, isa="reference", say=lambda line: None)
    assert one.results[0].uint8.calls == 1  # a whole round, and no second one
    assert "p99" in comparison_text(made_up())
    assert {"p90", "p99"} <= set(comparison_rows(made_up())[0]["spread_ms"])
    with pytest.raises(ValueError, match="one of `rounds`"):
        compare(small_program, rounds=None, isa="reference", say=lambda line: None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seconds", "0"), "--seconds: '0' is not a number above 0"),
        (("--seconds", "nan"), "--seconds: 'nan' is not a number above 0"),
        (("--streams", "2"), "`--streams` (=2) is for --throughput"),
        (("--batch", "1,2"), "`--batch` (='1,2') must be one number without --throughput"),
        (("--throughput", "--batch", "0"), "`batch` (=0) must be positive integers"),
        (("--throughput", "--rounds", "2"), "`--rounds` (=2) is for the comparison of whole networks"),
        (("--throughput", "--startup"), "not allowed with argument"),
        (("--layers", "--seconds", "2"), "`--seconds` (=2.0) is for the comparison"),
    ],
)
def test_options_without_effect_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from xnorpp.cli.main import main

    try:
        status = main(["bench", *arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2
    assert words in capsys.readouterr().err


def test_throughput_from_the_command_line(
    small_program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from xnorpp.cli.main import main

    write(small_program, tmp_path / "small.xnor")
    options = ["--throughput", *["--batch", "1,2", "--streams", "2", "--seconds", "0.1", "--json"]]
    assert main(["bench", str(tmp_path / "small.xnor"), *options, str(tmp_path / "rows.json")]) == 0
    assert "images per second with batch" in capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["batch"], row["streams"], row["unit"]) for row in rows] == [
        (1, 2, "images/s"),
        (2, 2, "images/s"),
    ]


def test_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = describe_machine()
    assert machine["cores"] >= 1
    assert "numpy" in machine["versions"]
    assert machine["cpu"] in machine_text(machine)
    monkeypatch.setenv(avx2.HIDDEN, "above-avx2")
    masked = describe_machine()
    assert "masked" in masked
    assert not any(flag.startswith(("avx512", "amx")) for flag in masked["isa"])
    monkeypatch.setenv(avx2.HIDDEN, "amx")
    assert "AMX" in describe_machine()["masked"]
    assert avx2.visible(["avx2", "avx512f", "amx_tile", "amx_int8"]) == ["avx2", "avx512f"]


def test_importing_bench_imports_no_engine() -> None:
    code = "import sys, xnorpp.bench; print({'torch', 'onnxruntime', 'openvino'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_the_preloaded_library_is_in_no_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there runs code in the process of the one who measures."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("XNORPP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        avx2, "_environment", lambda library, name: dict(os.environ)
    )  # built, and not preloaded
    library = avx2.build()
    assert library.parent == tmp_path / "cache" / "xnorpp" / "avx2"
    assert library.parent.stat().st_mode & 0o777 == 0o700
    assert not list(shared.iterdir())
    library.parent.chmod(0o777)
    with pytest.raises(CannotMask, match="can be written to by other users"):
        avx2.build()


def test_hiding_instructions_works_or_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        outcome = str(avx2.build(tmp_path / "private"))
    except CannotMask as error:
        outcome = str(error)
    assert outcome.startswith("--avx2-only ") or Path(outcome).exists()
    monkeypatch.setattr(avx2, "source_file", lambda: tmp_path / "missing.c")
    with pytest.raises(CannotMask, match=r"needs benchmarks/avx2_only\.c"):
        avx2.build(tmp_path)
