// xnorpp in the browser: runs packed one-bit networks (.xnor files). See xnorpp.d.ts for the types.
import { builds, Instance, XnorppError } from "./instance.js";

export { XnorppError };

const modules = new Map(); // compiled builds by address

async function bytesOf(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  const response = typeof Response !== "undefined" && source instanceof Response ? source : await read(source);
  if (!response.ok) throw new XnorppError(`${response.url || source} cannot be read (${response.status} ${response.statusText})`);
  return new Uint8Array(await response.arrayBuffer());
}

// Node's fetch does not read files.
async function read(source) {
  const url = new URL(source, typeof location === "undefined" ? import.meta.url : location.href);
  if (url.protocol !== "file:" || typeof process === "undefined") return fetch(url);
  const { readFile } = await import("node:fs/promises");
  return new Response(await readFile(url));
}

// Modules are stored compressed; a server that marks them as compressed has had them decompressed by the browser.
async function decompressed(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

function compiled(url) {
  if (!modules.has(url)) {
    const module = bytesOf(url).then(decompressed).then((bytes) => WebAssembly.compile(bytes));
    modules.set(url, module);
    module.catch(() => modules.delete(url)); // a network that failed may come back
  }
  return modules.get(url);
}

async function instantiate(folder, build) {
  const candidates = build ? [build] : builds();
  if (!candidates.length) throw new XnorppError("this browser has no WebAssembly SIMD; Chrome 91, Firefox 89 and Safari 16.4 have it");
  for (const name of candidates) {
    const instance = new Instance(await compiled(new URL(`xnorpp-${name}.wasm.gz`, folder).href));
    if (instance.call("isa", 0)) return instance;
  }
  throw new XnorppError(`the build ${build} of the library does not run on this machine; leave \`build\` out`);
}

/** Loads a packed model. */
export async function load(source, options = {}) {
  const folder = options.wasm ? new URL(options.wasm, typeof location === "undefined" ? import.meta.url : location.href) : new URL("./", import.meta.url);
  const [bytes, instance] = await Promise.all([bytesOf(source), instantiate(folder, options.build)]);
  return new Model(instance, bytes, options.limits ?? {});
}

/** A packed model that runs. */
export class Model {
  #instance;
  #handle;
  #buffers = {};

  constructor(instance, bytes, limits) {
    this.#instance = instance;
    const file = instance.allocate(bytes.length || 1);
    instance.bytes(file, bytes.length).set(bytes);
    const options = instance.allocate(48);
    const view = new DataView(instance.buffer, options, 48);
    view.setUint32(0, 40, true), view.setInt32(4, 1, true), view.setUint32(8, 0, true);
    [limits.fileBytes, limits.memoryBytes ?? 2 ** 30, limits.multiplyAdds].forEach((limit, i) => {
      view.setBigUint64(16 + 8 * i, BigInt(limit ?? 0), true);
    });
    instance.call("load_memory", file, bytes.length, options, options + 40, 0);
    this.#handle = instance.word(options + 40);
    instance.free(options), instance.free(file);
    this.fileBytes = bytes.length;
    this.#describe();
    const count = instance.call("label_count", this.#handle);
    this.labels = count ? Array.from({ length: count }, (_, i) => instance.text(instance.call("label", this.#handle, i))) : null;
    this.isa = instance.text(instance.call("model_isa", this.#handle));
  }

  #describe() {
    const instance = this.#instance;
    const input = instance.value("input", this.#handle);
    this.inputShape = input.shape;
    this.inputElements = input.elements;
    this.outputs = Array.from({ length: instance.call("output_count", this.#handle) }, (_, i) => instance.value("output", this.#handle, i));
    this.takesAnySize = instance.call("takes_any_size", this.#handle) === 1;
  }

  resize(height, width) {
    const instance = this.#instance;
    if (!this.takesAnySize) throw new XnorppError(`the model takes images of one size only, ${this.inputShape.join(" x ")}`);
    for (const [name, size] of Object.entries({ height, width }))
      if (!Number.isInteger(size) || size < 1) throw new XnorppError(`\`${name}\` (=${size}) must be an integer of at least 1`);
    const place = instance.allocate(4);
    try {
      instance.call("resized", this.#handle, BigInt(height), BigInt(width), place, 0);
      const other = instance.word(place);
      instance.call("free", this.#handle);
      this.#handle = other;
    } finally {
      instance.free(place);
    }
    this.#describe();
    return this;
  }

  get memory() {
    return this.#instance.buffer.byteLength;
  }

  // Memory of the instance for one purpose, as large as the largest call so far.
  #buffer(name, length) {
    const known = this.#buffers[name];
    if (known && known.length >= length) return known.at;
    if (known) this.#instance.free(known.at);
    delete this.#buffers[name];
    return (this.#buffers[name] = { at: this.#instance.allocate(length), length }).at;
  }

  run(input, count = 1) {
    const instance = this.#instance;
    const floats = input instanceof Float32Array;
    if (!floats && !(input instanceof Uint8Array) && !(input instanceof Uint8ClampedArray))
      throw new XnorppError("`input` must be a Uint8Array (rows of pixels) or a Float32Array (channels first, normalised)");
    if (!Number.isInteger(count) || count < 1 || input.length !== count * this.inputElements)
      throw new XnorppError(`\`input\` has ${input.length} numbers; ${count} x ${this.inputElements} (${this.inputShape.join(" x ")}) are needed`);
    const at = this.#buffer("input", input.byteLength);
    const results = this.outputs.map((output, i) => this.#buffer(`output ${i}`, 4 * count * output.elements));
    const pointers = this.#buffer("pointers", 4 * results.length);
    (floats ? instance.floats(at, input.length) : instance.bytes(at, input.length)).set(input);
    results.forEach((result, i) => new DataView(instance.buffer).setUint32(pointers + 4 * i, result, true));
    instance.call(floats ? "run_floats" : "run_bytes", this.#handle, at, count, pointers, 0);
    const found = this.outputs.map((output, i) => [output.name, instance.floats(results[i], count * output.elements).slice()]);
    return found.length === 1 ? found[0][1] : Object.fromEntries(found);
  }

  #pixels(image) {
    const { data, width, height } = image ?? {};
    const channels = image?.channels ?? (data && data.length === 4 * width * height ? 4 : 0);
    if (!(data instanceof Uint8Array || data instanceof Uint8ClampedArray) || !(width * height * channels === data.length && channels >= 1 && channels <= 4))
      throw new XnorppError("`image` must be an ImageData, or { data, width, height, channels } with 1 to 4 channels of bytes");
    const at = this.#buffer("image", data.length);
    this.#instance.bytes(at, data.length).set(data);
    return [this.#handle, at, width, height, channels];
  }

  prepare(image) {
    const pixels = this.#pixels(image);
    const prepared = this.#buffer("input", this.inputElements);
    this.#instance.call("prepare", ...pixels, prepared, 0);
    return this.#instance.bytes(prepared, this.inputElements).slice();
  }

  probabilities(outputs) {
    const at = this.#buffer("scores", 4 * outputs.length);
    this.#instance.floats(at, outputs.length).set(outputs);
    this.#instance.call("probabilities", this.#handle, at, 0);
    return this.#instance.floats(at, outputs.length).slice();
  }

  classify(image, { top = 5 } = {}) {
    if (!Number.isInteger(top) || top < 1) throw new XnorppError(`\`top\` (=${top}) must be an integer of at least 1`);
    const most = Math.min(top, this.outputs[0].elements);
    const guesses = this.#buffer("guesses", 12 * most + 4);
    this.#instance.call("classify", ...this.#pixels(image), most, guesses, guesses + 12 * most, 0);
    return Array.from({ length: this.#instance.word(guesses + 12 * most) }, (_, i) => {
      const index = this.#instance.word(guesses + 12 * i);
      const [probability] = this.#instance.floats(guesses + 12 * i + 4, 1);
      return { index, label: this.labels ? this.labels[index] : String(index), probability };
    });
  }
}
