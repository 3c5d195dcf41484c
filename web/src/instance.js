// One WebAssembly instance of the C library (include/xnorpp.h): memory, structures and errors. A model has an instance of its own,
// so what it takes is given back when it is no longer referenced, and a file that fails to load leaves nothing behind.

/** An error of the library: a damaged file, an input of the wrong size, a limit that is exceeded. */
export class XnorppError extends Error {
  name = "XnorppError";
}

// Modules of one function each, which only engines with that feature accept: i8x16.popcnt, and i8x16.relaxed_swizzle.
const head = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10];
const SIMD = new Uint8Array([...head, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11]);
const RELAXED = new Uint8Array([...head, 15, 1, 13, 0, 65, 0, 253, 15, 65, 0, 253, 15, 253, 128, 2, 11]);

/** The builds that this browser can run, best first. */
export function builds() {
  if (typeof WebAssembly === "undefined" || !WebAssembly.validate(SIMD)) return [];
  return WebAssembly.validate(RELAXED) ? ["relaxed", "simd"] : ["simd"];
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

export class Instance {
  #exports;

  constructor(module) {
    const imports = {};
    for (const { module: space, name } of WebAssembly.Module.imports(module)) (imports[space] ??= {})[name] = this.#import(name);
    this.#exports = new WebAssembly.Instance(module, imports).exports;
    this.#exports._initialize?.();
  }

  // Of the system interface the library needs a clock and a way to end; it opens no file and reads no environment.
  #import(name) {
    if (name === "fail")
      return (at, length) => {
        throw new XnorppError(decoder.decode(this.bytes(at, length).slice()));
      };
    if (name === "clock_time_get")
      return (id, precision, at) => {
        new DataView(this.buffer).setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
        return 0;
      };
    if (name === "proc_exit")
      return () => {
        throw new XnorppError("the library has stopped; there may not be enough memory");
      };
    return () => 52; // not implemented
  }

  get buffer() {
    return this.#exports.memory.buffer;
  }

  bytes(at, length) {
    return new Uint8Array(this.buffer, at, length);
  }

  floats(at, length) {
    return new Float32Array(this.buffer, at, length);
  }

  word(at) {
    return new DataView(this.buffer).getUint32(at, true);
  }

  text(at) {
    if (!at) return null;
    const all = new Uint8Array(this.buffer);
    return decoder.decode(all.slice(at, all.indexOf(0, at)));
  }

  allocate(length) {
    const at = this.#exports.malloc(length);
    if (!at) throw new XnorppError(`there is no memory for ${length} bytes`);
    return at;
  }

  free(at) {
    this.#exports.free(at);
  }

  /** The address of a text that ends with a zero. */
  write(text) {
    const encoded = encoder.encode(`${text}\0`);
    const at = this.allocate(encoded.length);
    this.bytes(at, encoded.length).set(encoded);
    return at;
  }

  /** A function of the library. An error ends it anywhere, so the stack is given back here. */
  call(name, ...values) {
    const stack = this.#exports.__stack_pointer;
    const before = stack.value;
    try {
      return this.#exports[`xnorpp_${name}`](...values);
    } catch (error) {
      stack.value = before;
      if (error instanceof XnorppError) throw error;
      throw new XnorppError(`the library has stopped (${error.message}); there may not be enough memory`);
    }
  }

  /** A function that returns an xnorpp_value. */
  value(name, ...values) {
    const at = this.allocate(80);
    try {
      this.call(name, at, ...values);
      const view = new DataView(this.buffer, at, 80);
      const shape = Array.from({ length: view.getInt32(4, true) }, (_, i) => Number(view.getBigInt64(8 + 8 * i, true)));
      return { name: this.text(view.getUint32(0, true)), shape, elements: view.getUint32(72, true) };
    } finally {
      this.free(at);
    }
  }
}
