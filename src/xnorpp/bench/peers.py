"""The other engines, each with its own best settings, on the real-valued baseline.

    torch          eager, channels_last; torch.compile (inductor) with frozen weights
    eager          the first of torch's two alone
    onnxruntime    fp32; int8: static quantisation in QDQ form, per channel, calibrated on random images
    openvino       fp32; int8: NNCF post-training quantisation, calibrated likewise; latency hint

Every engine gets uint8 images with the normalisation inside its own graph, where it can be fused, and
float32 images too. A library that is not installed is an `Unavailable` with one line. Each function
gives the engines for every thread count asked for.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xnorpp.bench.engine import Array, Engine, Unavailable, random_images
from xnorpp.bench.machine import describe_machine
from xnorpp.runtime.format.preprocess import normalise, scale_and_offset

CALIBRATION = 8  # random images; with random weights more would change nothing


@dataclass(frozen=True)
class Task:
    """What the other engines run: the baseline (an nn.Module), its input shape, batch, and normalisation."""

    baseline: Any
    shape: tuple[int, ...]
    batch: int
    threads: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def scale_and_shift(self) -> tuple[Array, Array]:
        """`(x/255 - mean)/std` as `x*scale + shift`, one number per channel."""
        return scale_and_offset(self.mean, self.std)

    def calibration(self) -> list[Array]:
        images = random_images(CALIBRATION * self.batch, self.shape, seed=1)
        return list(normalise(images, self.mean, self.std).reshape(CALIBRATION, self.batch, *self.shape))


def _need(package: str, command: str = "pip install 'xnorpp[bench]'") -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise Unavailable(f"{package} is not installed ({error}); install it with `{command}`") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Converters print much: their standard output and warnings are suppressed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def torch_engines(task: Task, compile: bool = True) -> Iterator[Engine]:
    """Eager, and compiled with frozen weights where wanted; compiling deep networks takes minutes."""
    torch = _need("torch")

    class Normalised(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The baseline after `(x/255 - mean)/std` of uint8 (n, h, w, c)."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner
            scale, shift = task.scale_and_shift()
            self.register_buffer("scale", torch.from_numpy(scale))
            self.register_buffer("shift", torch.from_numpy(shift))

        def forward(self, x: Any) -> Any:
            return self.inner((x.float() * self.scale + self.shift).permute(0, 3, 1, 2))

    def numpy_call(model: Any, channels_last: bool) -> Callable[[Array], Array]:
        def call(x: Array) -> Array:
            tensor = torch.from_numpy(x)
            if channels_last:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                result: Array = model(tensor).numpy()
            return result

        return call

    for threads in task.threads:
        torch.set_num_threads(threads)
        eager = copy.deepcopy(task.baseline).eval().to(memory_format=torch.channels_last)
        settings: dict[str, Any] = {"threads": threads, "before": _thread_setter(torch, threads)}
        yield Engine(
            "torch eager", "fp32",
            from_uint8=numpy_call(Normalised(eager), False), from_float=numpy_call(eager, True), **settings,
        )  # fmt: skip
        if compile:
            yield _compiled(torch, task, Normalised, settings)


def _thread_setter(torch: Any, threads: int) -> Callable[[], object]:
    return lambda: torch.set_num_threads(threads)


def _compiled(torch: Any, task: Task, normalised: Any, settings: dict[str, Any]) -> Engine:
    inductor = importlib.import_module("torch._inductor.config")
    threads = settings["threads"]
    x = random_images(task.batch, task.shape)
    floats = normalise(x, task.mean, task.std)

    def compiled(model: Any, example: Array) -> Callable[[Array], Array]:
        run = torch.compile(model)

        def call(x: Array) -> Array:
            # Frozen constants need no_grad; inference_mode would compile the graph again.
            with torch.no_grad():
                result: Array = run(torch.from_numpy(x)).numpy()
            return result

        torch.set_num_threads(threads)
        call(example)
        call(example)
        return call

    baseline = copy.deepcopy(task.baseline).eval().to(memory_format=torch.channels_last)
    try:
        with _quiet(), inductor.patch(freezing=True):
            from_uint8 = compiled(normalised(copy.deepcopy(baseline)).eval(), x)
            from_float = compiled(baseline, floats)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise Unavailable(
            f"torch.compile failed here ({type(error).__name__}: {reason[0] if reason else ''})"
        ) from None
    return Engine("torch.compile", "fp32", from_uint8=from_uint8, from_float=from_float, **settings)


def export_onnx(baseline: Any, batch: int, shape: tuple[int, ...], path: Path) -> None:
    """The baseline as ONNX with one float32 input `input` (n, c, h, w) and a fixed batch."""
    torch = _need("torch")
    for package in ("onnx", "onnxscript"):
        _need(package)
    with _quiet(), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(
            baseline.eval(), (torch.zeros(batch, *shape),), str(path), dynamo=True, external_data=False,
            input_names=["input"], output_names=["output"], verbose=False, opset_version=18,
        )  # fmt: skip


def with_normalisation(task: Task, model: Any) -> Any:
    """An ONNX model of normalised images -> the same from uint8 (n, h, w, c)."""
    onnx = _need("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    c, h, w = task.shape
    scale, shift = task.scale_and_shift()
    nodes = [
        helper.make_node("Cast", ["image"], ["pp_float"], to=types.FLOAT),
        helper.make_node("Mul", ["pp_float", "pp_scale"], ["pp_scaled"]),
        helper.make_node("Add", ["pp_scaled", "pp_shift"], ["pp_shifted"]),
        helper.make_node("Transpose", ["pp_shifted"], [model.graph.input[0].name], perm=[0, 3, 1, 2]),
    ]
    constants = [
        onnx.numpy_helper.from_array(scale, "pp_scale"),
        onnx.numpy_helper.from_array(shift, "pp_shift"),
    ]
    image = helper.make_tensor_value_info("image", types.UINT8, [task.batch, h, w, c])
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.input[:], whole.graph.node[:]
    whole.graph.input.append(image)
    whole.graph.initializer.extend(constants)
    whole.graph.node.extend([*nodes, *model.graph.node])
    onnx.checker.check_model(whole)
    return whole


def onnxruntime_engines(task: Task) -> Iterator[Engine]:
    """fp32 and statically quantised int8."""
    runtime, onnx = _need("onnxruntime"), _need("onnx")
    runtime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory(prefix="xnorpp-bench-") as name:
        folder = Path(name)
        export_onnx(task.baseline, task.batch, task.shape, folder / "fp32.onnx")
        models = {"fp32": onnx.load(folder / "fp32.onnx")}
        try:
            models["int8"] = quantise_onnx(task, folder)
        except ImportError as error:
            raise Unavailable(f"onnxruntime cannot quantise here ({error})") from None

    def session(model: Any, threads: int) -> Callable[[Array], Array]:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        run = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        entry = run.get_inputs()[0].name

        def call(x: Array) -> Array:
            result: Array = run.run(None, {entry: x})[0]
            return result

        return call

    for precision, model in models.items():
        images_in = with_normalisation(task, model)
        for threads in task.threads:
            yield Engine(
                f"onnxruntime {precision}", "fp32" if precision == "fp32" else "int8", threads,
                session(images_in, threads), session(model, threads),
            )  # fmt: skip


def quantise_onnx(task: Task, folder: Path) -> Any:
    """`fp32.onnx` in `folder` as QDQ int8, per channel (unsigned activations, signed weights)."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(task.calibration())

        def get_next(self) -> dict[str, Array] | None:
            batch = next(self.rest, None)
            return None if batch is None else {"input": batch}

    with _quiet():
        quant_pre_process(str(folder / "fp32.onnx"), str(folder / "clean.onnx"))
        quantization.quantize_static(
            str(folder / "clean.onnx"), str(folder / "int8.onnx"), Reader(),
            quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    return onnx.load(folder / "int8.onnx")


# A convolution in bfloat16, which takes the matrix unit (AMX) where the processor reports one.
_MATRIX_UNIT = """
import numpy, openvino
from openvino import opset1
x = opset1.parameter([1, 64, 14, 14], numpy.float32)
y = opset1.convolution(x, opset1.constant(numpy.ones((64, 64, 3, 3), numpy.float32)), *[[1, 1]] * 4)
graph, hint = openvino.Model([y], [x], "probe"), {"INFERENCE_PRECISION_HINT": "bf16"}
model = openvino.Core().compile_model(graph, "CPU", hint)
model([numpy.ones((1, 64, 14, 14), numpy.float32)])
"""


def load_openvino() -> tuple[Any, tuple[str, ...]]:
    """The module, and a note where OpenVINO must not use a matrix unit that this machine only claims to have:
    some virtual machines list AMX and end the process that uses it, which a child process finds out.
    """
    machine = describe_machine()
    _need("openvino")
    if "amx_tile" in machine["isa"] and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        done = subprocess.run([sys.executable, "-c", _MATRIX_UNIT], capture_output=True, timeout=120)
        if done.returncode:
            os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
            os.environ["XNORPP_AMX_FAILS"] = "1"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    reason = ": AMX does not work here" if "XNORPP_AMX_FAILS" in os.environ else ""
    return _need("openvino"), (f"ONEDNN_MAX_CPU_ISA={limit}{reason}",) if limit else ()


def openvino_engines(task: Task) -> Iterator[Engine]:
    """fp32 and int8 quantised by NNCF."""
    openvino, notes = load_openvino()
    with tempfile.TemporaryDirectory(prefix="xnorpp-bench-") as name:
        export_onnx(task.baseline, task.batch, task.shape, Path(name) / "fp32.onnx")
        real = openvino.Core().read_model(Path(name) / "fp32.onnx")
        yield from _openvino_pair(openvino, task, "openvino fp32", real, notes)
        try:
            whole = quantise_openvino(task, real)
        except Unavailable:  # without NNCF the model that onnxruntime quantised, which OpenVINO reads as well
            _need("onnxruntime")
            quantise_onnx(task, Path(name))
            whole = openvino.Core().read_model(Path(name) / "int8.onnx")
            notes = (*notes, "openvino int8: NNCF is not installed; the model was quantised by onnxruntime")
        yield from _openvino_pair(openvino, task, "openvino int8", whole, notes)


def quantise_openvino(task: Task, model: Any) -> Any:
    """NNCF post-training quantisation with its defaults for CPU."""
    os.environ.setdefault("NNCF_DISABLE_TELEMETRY", "1")
    nncf = _need("nncf")
    # NNCF draws its progress on whichever console it finds; a dumb terminal keeps it silent.
    with _quiet(), contextlib.redirect_stderr(io.StringIO()):
        return nncf.quantize(model, nncf.Dataset(task.calibration()), subset_size=CALIBRATION)


def openvino_settings(threads: int) -> dict[str, Any]:
    """Latency hint, the number of threads, and true float32 (with AMX, OpenVINO would choose bfloat16)."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }


def _openvino_pair(
    openvino: Any, task: Task, name: str, model: Any, notes: tuple[str, ...]
) -> Iterator[Engine]:
    core = openvino.Core()
    steps = openvino.preprocess.PrePostProcessor(model.clone())
    entry = steps.input()
    entry.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
    entry.preprocess().convert_element_type(openvino.Type.f32)
    entry.preprocess().mean([255 * m for m in task.mean]).scale([255 * s for s in task.std])
    entry.model().set_layout(openvino.Layout("NCHW"))
    images_in = steps.build()

    def compiled(graph: Any, threads: int) -> Callable[[Array], Array]:
        request = core.compile_model(graph, "CPU", openvino_settings(threads)).create_infer_request()

        def call(x: Array) -> Array:
            request.infer([x], share_inputs=True)
            result: Array = request.get_output_tensor().data
            return result

        return call

    for threads in task.threads:
        yield Engine(
            name, "int8" if name.endswith("int8") else "fp32", threads,
            compiled(images_in, threads), compiled(model, threads), notes=notes,
        )  # fmt: skip


PEERS: dict[str, Callable[[Task], Iterator[Engine]]] = {
    "torch": torch_engines,
    "onnxruntime": onnxruntime_engines,
    "openvino": openvino_engines,
    "eager": functools.partial(torch_engines, compile=False),
}


def collect(task: Task, names: Sequence[str], say: Callable[[str], None]) -> list[Engine]:
    """The engines of these libraries; one that is missing is skipped with a message."""
    engines: list[Engine] = []
    for name in names:
        if name not in PEERS:
            raise ValueError(f"`against` (={name!r}) must be among {', '.join(PEERS)}")
        say(f"preparing {name}")
        try:
            for engine in PEERS[name](task):
                engines.append(engine)
        except Unavailable as error:
            say(f"{name} is skipped: {error}")
    return engines
