#!/usr/bin/env bash
# Images in class folders, from the shell alone: train, evaluate, pack, predict.
#     bash examples/folder_from_the_shell.sh [OUT]     OUT: the folder for its files (default: a temporary one)
set -euo pipefail
cd "${1:-$(mktemp -d)}"

# Stand-ins for images of yours: my-images/CLASS/*.png
python - <<'PYTHON'
from pathlib import Path
from PIL import Image
from sklearn.datasets import load_digits

for number, (image, label) in enumerate(zip(*load_digits(n_class=3, return_X_y=True))):
    place = Path("my-images", ("zero", "one", "two")[label])
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image.reshape(8, 8) * 15).astype("uint8")).resize((24, 24)).save(place / f"{number}.png")
PYTHON

# One tree of classes, a fifth of it held out; my-images/train/CLASS and my-images/val/CLASS work without.
xnorpp train folder-small --data my-images --out runs/mine --quiet \
    --set data.holdout=0.2 --set data.channels=1 --set data.size=16 --set schedule.epochs=3
xnorpp eval runs/mine --data my-images
xnorpp pack runs/mine -o mine.xnor
xnorpp eval mine.xnor --data my-images
xnorpp predict mine.xnor my-images/two/*2.png --top 1
