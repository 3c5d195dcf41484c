// A board to draw a digit on, and the 8 by 8 pixels that scikit-learn's digits have: the drawing fills the height, is centred, and
// each pixel is the ink of its square.
const INK = "#1b1b25";

/** Calls `changed` with an image of 8 by 8 grey pixels after each stroke, or null when the board is empty. */
export function drawingBoard(board, seen, changed) {
  const context = board.getContext("2d", { willReadFrequently: true });
  let last = null;
  let pending = false;

  function at(event) {
    const box = board.getBoundingClientRect();
    const side = Math.min(box.width, box.height); // the canvas is a square inside its box
    const scale = board.width / side;
    return [(event.clientX - box.left - (box.width - side) / 2) * scale, (event.clientY - box.top - (box.height - side) / 2) * scale];
  }

  function stroke(from, to) {
    context.strokeStyle = INK;
    context.lineWidth = board.width * 0.1;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
  }

  function look() {
    pending = false;
    const image = digitOf(context.getImageData(0, 0, board.width, board.height));
    show(seen, image);
    changed(image);
  }

  board.addEventListener("pointerdown", (event) => {
    board.setPointerCapture(event.pointerId);
    last = at(event);
    stroke(last, last);
  });
  board.addEventListener("pointermove", (event) => {
    if (!last) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) {
      const next = at(part);
      stroke(last, next);
      last = next;
    }
    if (!pending) (pending = true), requestAnimationFrame(look);
  });
  for (const kind of ["pointerup", "pointercancel"])
    board.addEventListener(kind, () => {
      if (last) look();
      last = null;
    });

  function clear() {
    context.clearRect(0, 0, board.width, board.height);
    look();
  }
  show(seen, null);
  return { clear };
}

/** { data, width: 8, height: 8, channels: 1 }, ink 255; null where there is no ink. */
export function digitOf({ data, width, height }) {
  let left = width;
  let right = -1;
  let top = height;
  let bottom = -1;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (data[4 * (y * width + x) + 3] > 64) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = Math.max(bottom, y);
      }
  if (right < left) return null;
  const tall = bottom - top + 1;
  const wide = right - left + 1;
  const side = Math.max(tall, wide) / 8; // of the square behind one pixel
  const x0 = (left + right + 1) / 2 - 4 * side;
  const y0 = (top + bottom + 1) / 2 - 4 * side;
  const pixels = new Uint8Array(64);
  for (let j = 0; j < 8; j++)
    for (let i = 0; i < 8; i++) {
      let ink = 0;
      const samples = 8;
      for (let v = 0; v < samples; v++)
        for (let u = 0; u < samples; u++) {
          const x = Math.floor(x0 + (i + (u + 0.5) / samples) * side);
          const y = Math.floor(y0 + (j + (v + 0.5) / samples) * side);
          if (x >= 0 && y >= 0 && x < width && y < height) ink += data[4 * (y * width + x) + 3];
        }
      pixels[8 * j + i] = Math.round(ink / (samples * samples));
    }
  return { data: pixels, width: 8, height: 8, channels: 1 };
}

function show(canvas, image) {
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(8, 8);
  for (let i = 0; i < 64; i++) pixels.data.set([...Array(3).fill(image ? image.data[i] : 0), 255], 4 * i);
  context.putImageData(pixels, 0, 0);
}
