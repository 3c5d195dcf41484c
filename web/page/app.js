// The page: an image comes from a file, the clipboard, a drop, the camera or the drawing board; the answer is shown at once.
import { load, XnorppError } from "./lib/xnorpp.js";
import { compare } from "./compare.js";
import { drawingBoard } from "./board.js";

const NETWORKS = { photo: "models/cifar10-resnet20.xnor", digit: "models/digits.xnor" };
const LARGEST = 2048; // sides of an image; a larger one is scaled down by the browser first
const BUDGET = 40; // milliseconds that a measurement may take

const $ = (id) => document.getElementById(id);
const loading = new Map();
let mode = "photo";
let current = { photo: null, digit: null }; // the last image of each network
let stream = null;

function model(name) {
  if (!loading.has(name)) {
    const promise = load(NETWORKS[name]);
    promise.catch(() => loading.delete(name));
    loading.set(name, promise);
  }
  return loading.get(name);
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
}

function kilobytes(bytes) {
  return bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// The clock of a browser has steps of a tenth of a millisecond: a short call is repeated.
export function milliseconds(work, budget = BUDGET) {
  const start = performance.now();
  let runs = 0;
  let passed = 0;
  do {
    work();
    runs++;
    passed = performance.now() - start;
  } while (passed < budget);
  return passed / runs;
}

function showFacts(net, time) {
  $("speed").textContent = time < 0.095 ? `${(1000 * time).toFixed(0)} µs` : `${time.toFixed(time < 10 ? 2 : 1)} ms`;
  $("size").textContent = kilobytes(net.fileBytes);
  $("kernels").textContent = net.isa;
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const ours = entries.filter((entry) => !entry.name.includes("/compare/"));
  $("downloaded").textContent = kilobytes(ours.reduce((sum, entry) => sum + (entry.encodedBodySize || 0), 0));
}

function showGuesses(guesses) {
  const [best] = guesses;
  $("label").textContent = best.label;
  $("certainty").textContent = `${(100 * best.probability).toFixed(1)} %`;
  $("guesses").replaceChildren(
    ...guesses.map((guess) => {
      const row = document.createElement("li");
      const name = document.createElement("b");
      const number = document.createElement("span");
      const bar = document.createElement("i");
      name.textContent = guess.label; // text from a file: never as markup
      number.textContent = `${(100 * guess.probability).toFixed(1)} %`;
      bar.style.setProperty("--p", guess.probability);
      row.append(name, number, bar);
      return row;
    }),
  );
}

function clearAnswer() {
  $("label").textContent = "\u00a0";
  $("certainty").textContent = "";
  $("guesses").replaceChildren();
  $("speed").textContent = "–";
}

async function answer(name, image, budget) {
  const net = await model(name);
  if (mode !== name) return;
  const guesses = net.classify(image, { top: 5 });
  const prepared = net.prepare(image);
  const time = milliseconds(() => net.run(prepared), budget);
  current[name] = { image, prepared, guesses, time, net };
  showGuesses(guesses);
  showFacts(net, time);
  document.documentElement.dataset.answered = String(1 + Number(document.documentElement.dataset.answered ?? 0));
}

function guarded(work) {
  return async (...values) => {
    try {
      await work(...values);
    } catch (error) {
      say(error instanceof XnorppError || error instanceof TypeError || error instanceof DOMException ? error.message : String(error), true);
    }
  };
}

// --- images

function pixelsOf(source, width, height) {
  const view = $("view");
  const scale = Math.min(1, LARGEST / Math.max(width, height));
  view.width = Math.max(1, Math.round(width * scale));
  view.height = Math.max(1, Math.round(height * scale));
  const context = view.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff"; // behind transparent pixels
  context.fillRect(0, 0, view.width, view.height);
  context.drawImage(source, 0, 0, view.width, view.height);
  view.hidden = false;
  $("hint").hidden = true;
  $("stage").classList.add("full");
  return context.getImageData(0, 0, view.width, view.height);
}

const showImage = guarded(async (blob) => {
  stopCamera();
  say("");
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image" });
  } catch {
    throw new XnorppError("this file is not an image that the browser can read");
  }
  const image = pixelsOf(bitmap, bitmap.width, bitmap.height);
  bitmap.close();
  await answer("photo", image);
});

function stopCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("camera").hidden = true;
  $("photograph").textContent = "Camera";
}

const photograph = guarded(async () => {
  if (stream) {
    stopCamera(); // the last frame stays
    return;
  }
  if (!navigator.mediaDevices?.getUserMedia) throw new XnorppError("the camera needs a page that is served over https, or from this computer");
  say("");
  stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: 640, height: 640 }, audio: false });
  const camera = $("camera");
  camera.srcObject = stream;
  await camera.play();
  $("photograph").textContent = "Take photo";
  let last = 0;
  const frame = guarded(async (now) => {
    if (!stream) return;
    if (now - last > 120 && mode === "photo") {
      last = now;
      const side = Math.min(camera.videoWidth, camera.videoHeight);
      const square = await createImageBitmap(camera, (camera.videoWidth - side) / 2, (camera.videoHeight - side) / 2, side, side);
      if (stream) await answer("photo", pixelsOf(square, side, side), 0);
      square.close();
    }
    if (stream) requestAnimationFrame(frame);
  });
  requestAnimationFrame(frame);
});

$("file").addEventListener("change", ({ target }) => {
  if (target.files[0]) showImage(target.files[0]);
  target.value = "";
});
$("photograph").addEventListener("click", photograph);
$("stage").addEventListener("click", () => !stream && $("file").click());
$("stage").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") event.preventDefault(), $("file").click();
});
$("paste").addEventListener(
  "click",
  guarded(async () => {
    if (!navigator.clipboard?.read) throw new XnorppError("press Ctrl+V (or ⌘V) to paste an image here");
    for (const item of await navigator.clipboard.read()) {
      const type = item.types.find((one) => one.startsWith("image/"));
      if (type) return showImage(await item.getType(type));
    }
    throw new XnorppError("there is no image on the clipboard");
  }),
);
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) choose("photo"), showImage(file);
});
for (const kind of ["dragenter", "dragover"])
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("stage").classList.add("over");
  });
for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => $("stage").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) choose("photo"), showImage(file);
});

// --- digits

const board = drawingBoard(
  $("board"),
  $("seen"),
  guarded(async (image) => {
    current.digit = null;
    if (image) await answer("digit", image);
    else clearAnswer();
  }),
);
$("clear").addEventListener("click", board.clear);

// --- the two networks

function choose(name) {
  if (mode === name) return;
  mode = name;
  stopCamera();
  say("");
  for (const one of ["photo", "digit"]) {
    $(`tab-${one}`).setAttribute("aria-selected", String(one === name));
    $(`panel-${one}`).hidden = one !== name;
  }
  clearAnswer();
  if (current[name]) answer(name, current[name].image);
  guarded(ready)(name);
}

async function ready(name) {
  const net = await model(name);
  if (mode === name && !current[name]) showFacts(net, NaN), ($("speed").textContent = "–");
}

for (const name of ["photo", "digit"]) $(`tab-${name}`).addEventListener("click", () => choose(name));
$("compare").addEventListener(
  "click",
  guarded(async () => {
    $("compare").disabled = true;
    try {
      say("");
      if (!current[mode]) throw new XnorppError("choose an image, or draw a digit, first");
      await compare(mode, current[mode], { table: $("compared"), milliseconds, kilobytes });
    } finally {
      $("compare").disabled = false;
    }
  }),
);

guarded(async () => {
  await ready("photo");
  const { searchParams } = new URL(location.href); // ?image=photo.jpg shows an image of the same server
  if (searchParams.has("digit")) choose("digit");
  const name = searchParams.get("image");
  if (name) {
    const response = await fetch(new URL(name, location.href));
    if (!response.ok) throw new XnorppError(`${name} cannot be read (${response.status})`);
    await showImage(await response.blob());
  }
})();
