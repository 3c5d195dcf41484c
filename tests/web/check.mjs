// What Node and the browser both run: every case of cases.json, each a model and its images, and the library's errors.
export async function check(folder, library, only) {
  const { load, XnorppError } = await import(new URL(library, folder).href);
  const bytes = async (name) => {
    const url = new URL(name, folder);
    if (url.protocol === "file:") return new Uint8Array(await (await import("node:fs/promises")).readFile(url));
    return new Uint8Array(await (await fetch(url)).arrayBuffer());
  };
  const cases = JSON.parse(new TextDecoder().decode(await bytes("cases.json")));
  const results = [];
  for (const { model: name, images, count, build, size } of cases) {
    if (only && build && build !== only) continue;
    const model = await load(await bytes(name), build ? { build } : {});
    if (size) model.resize(size[0] + 1, size[1] + 9).resize(...size);
    const pixels = await bytes(images);
    const outputs = model.run(pixels, count);
    const [channels, height, width] = model.inputShape;
    const first = { data: pixels.subarray(0, model.inputElements), width, height, channels };
    results.push({
      model: name,
      build: build ?? null,
      isa: model.isa,
      labels: model.labels,
      fileBytes: model.fileBytes,
      outputs: Array.from(outputs),
      again: Array.from(model.run(pixels.subarray(0, model.inputElements))),
      guesses: size ? [] : model.classify(first, { top: 3 }),
      prepared: size ? [] : Array.from(model.prepare({ data: pixels, width, height: height * count, channels })),
    });
  }
  const errors = [];
  const attempt = async (work) => {
    try {
      await work();
      errors.push(null);
    } catch (error) {
      errors.push(error instanceof XnorppError ? error.message : `not an XnorppError: ${error.stack}`);
    }
  };
  const good = await bytes(cases[0].model);
  const damaged = good.slice();
  damaged[damaged.length - 1] ^= 1;
  await attempt(() => load(damaged));
  await attempt(() => load(good, { limits: { memoryBytes: 1000 } }));
  const model = await load(good);
  await attempt(() => model.run(new Uint8Array(5)));
  await attempt(() => model.classify({ data: new Uint8Array(5), width: 2, height: 2 }));
  await attempt(() => model.classify({ data: new Uint8Array(16), width: 2, height: 2 }, { top: 0 }));
  await attempt(() => model.resize(9, 9));
  const image = () => ({ data: new Uint8Array(64 * 64 * 4), width: 64, height: 64 });
  model.classify(image()); // the first one may need another page, those after it none
  const before = model.memory;
  for (let i = 0; i < 50; i++) model.classify(image());
  return { results, errors, grown: model.memory - before };
}
