// On request: the real-valued network of the same shape in onnxruntime-web, on the same image, in this page, on one thread. Nothing of
// it is loaded before. `make web-compare` adds the folder compare/ (the engine and the networks).

let sessions = null;

async function start() {
  const listed = await fetch("compare/networks.json");
  if (!listed.ok) throw new TypeError("this copy of the page has no comparison; `make web-compare` adds it");
  const networks = await listed.json();
  const ort = await import(new URL("compare/ort.wasm.min.mjs", location.href).href);
  ort.env.wasm.wasmPaths = new URL("compare/", location.href).href;
  ort.env.wasm.numThreads = 1;
  return { ort, networks, ready: new Map() };
}

// (x / 255 - mean) / std, channels first.
function normalised(bytes, [channels, height, width], { mean, std }) {
  const out = new Float32Array(bytes.length);
  for (let c = 0; c < channels; c++)
    for (let i = 0; i < height * width; i++) out[c * height * width + i] = (bytes[i * channels + c] / 255 - mean[c]) / std[c];
  return out;
}

async function timed(run, budget) {
  const start = performance.now();
  let runs = 0;
  let passed;
  do {
    await run();
    runs++;
    passed = performance.now() - start;
  } while (passed < budget);
  return passed / runs;
}

/** Fills `table` with our answer and that of onnxruntime-web for the image in `current`. */
export async function compare(name, current, { table, milliseconds, kilobytes }) {
  sessions ??= await start();
  const { ort, networks, ready } = sessions;
  const net = current.net;
  const rows = [["xnorpp, one bit", current.guesses[0].label, milliseconds(() => net.run(current.prepared), 300), net.fileBytes]];
  for (const entry of networks[name] ?? []) {
    if (!ready.has(entry.file)) {
      const bytes = await (await fetch(`compare/${entry.file}`)).arrayBuffer();
      ready.set(entry.file, { session: await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] }), bytes: bytes.byteLength });
    }
    const { session, bytes } = ready.get(entry.file);
    const tensor = new ort.Tensor("float32", normalised(current.prepared, net.inputShape, entry), [1, ...net.inputShape]);
    const run = () => session.run({ [session.inputNames[0]]: tensor });
    await run();
    const time = await timed(run, 300);
    const scores = (await run())[session.outputNames[0]].data;
    const best = scores.reduce((most, score, i) => (score > scores[most] ? i : most), 0);
    rows.push([`onnxruntime-web, ${entry.precision}`, net.labels?.[best] ?? String(best), time, bytes]);
  }
  table.tBodies[0].replaceChildren(
    ...rows.map(([engine, label, time, bytes]) => {
      const row = document.createElement("tr");
      for (const text of [engine, label, time.toFixed(2), kilobytes(bytes)]) row.insertCell().textContent = text;
      return row;
    }),
  );
  table.hidden = false;
}
