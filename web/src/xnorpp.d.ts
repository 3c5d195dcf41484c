/** An error of the library: a damaged file, an input of the wrong size, a limit that is exceeded. */
export class XnorppError extends Error {}

/** What a file may take; beyond one of them `load` rejects. */
export interface Limits {
  /** Size of the file, at most 2^32. */
  fileBytes?: number;
  /** Weights, constants and the working memory of one call; by default 2^30. */
  memoryBytes?: number;
  /** Work of one image; 32 one-bit products count as one. By default 2^38. */
  multiplyAdds?: number;
}

export interface LoadOptions {
  limits?: Limits;
  /** The folder of xnorpp-simd.wasm.gz and xnorpp-relaxed.wasm.gz; by default the folder of this module. */
  wasm?: string | URL;
  /** The build to use; by default the best that this browser runs. */
  build?: "relaxed" | "simd";
}

/** Rows of pixels: an ImageData, or bytes of 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) channels. */
export interface Pixels {
  data: Uint8Array | Uint8ClampedArray;
  width: number;
  height: number;
  /** By default 4. */
  channels?: number;
}

export interface Guess {
  index: number;
  /** The name of the class from the file (escape it as any foreign text), or its number. */
  label: string;
  probability: number;
}

export interface Output {
  name: string;
  shape: number[];
  elements: number;
}

/** A packed model that runs. */
export class Model {
  private constructor();
  /** (channels, height, width) of one image. */
  readonly inputShape: number[];
  readonly inputElements: number;
  readonly outputs: Output[];
  /** The names of the classes, where the file has them. */
  readonly labels: string[] | null;
  /** The kernels that run it: "wasm-relaxed" or "wasm-simd". */
  readonly isa: string;
  /** Size of the file. */
  readonly fileBytes: number;
  /** Bytes of WebAssembly memory that the model holds. */
  readonly memory: number;

  /**
   * The most likely classes of an image of any size, best first. It is resized and cropped as the file states it; alpha is ignored
   * unless the network takes it.
   */
  classify(image: ImageData | Pixels, options?: { top?: number }): Guess[];

  /**
   * Runs `count` images of the input's size: bytes [height][width][channels], normalised inside, or floats [channels][height][width],
   * already normalised. Returns the outputs of all images one after the other; by name where the model has several outputs.
   */
  run(input: Uint8Array | Uint8ClampedArray | Float32Array, count?: number): Float32Array | Record<string, Float32Array>;

  /** Whether images of other heights and widths are allowed: see `resize`. */
  readonly takesAnySize: boolean;

  /** From now on the model takes images of this height and width; only where `takesAnySize`. Returns the model. */
  resize(height: number, width: number): this;

  /** The bytes that `classify` makes of an image, for `run`. */
  prepare(image: ImageData | Pixels): Uint8Array;

  /** Softmax of one image's outputs, with the temperature that the file stores. */
  probabilities(outputs: Float32Array | number[]): Float32Array;
}

/** Loads a packed model from an address, a response or bytes. */
export function load(source: string | URL | Response | ArrayBuffer | ArrayBufferView, options?: LoadOptions): Promise<Model>;
