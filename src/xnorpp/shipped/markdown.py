"""A model card as Markdown, with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from xnorpp.shipped.accuracy import has_top5
from xnorpp.shipped.card import render_card

# How the hub calls our data sets.
DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny_imagenet": "zh-plus/tiny-imagenet",
}


def markdown_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown: front matter for the hub, how to use the model, and everything the card states.

    Args:
        card: As `shipped_card` returns it.

    Returns:
        The text of a README.md.

    Example:
        >>> from xnorpp.shipped import shipped_card
        >>> markdown_card(shipped_card("cifar10-resnet20")).splitlines()[0]
        '---'
    """
    dataset = str(card["data"]["dataset"])
    hub = DATASETS.get(dataset, dataset)
    top1, top5 = (float(card["accuracy"][key]) for key in ("packed_top1", "packed_top5"))
    metrics = [("accuracy", "top-1 accuracy, %", top1)]
    if has_top5(len(card["data"]["classes"])):
        metrics.append(("accuracy", "top-5 accuracy, %", top5))
    front = [
        "---",
        f"license: {card['licence']['weights'].lower()}",
        "library_name: xnorpp",
        "pipeline_tag: image-classification",
        "tags: [binary-neural-network, xnor-net, quantization, one-bit]",
        f"datasets: [{hub}]",
        "metrics: [accuracy]",
        "model-index:",
        f"  - name: {card['name']}",
        "    results:",
        "      - task: {type: image-classification}",
        f"        dataset: {{name: {json.dumps(dataset)}, type: {hub}, split: {card['accuracy']['split']}}}",
        "        metrics:",
        *(
            f"          - {{type: {kind}, name: {json.dumps(name)}, value: {value:.2f}}}"
            for kind, name, value in metrics
        ),
        "---",
    ]
    return "\n".join(
        [
            *front,
            "",
            f"# {card['name']}",
            "",
            f"{card['about']}. Weights and activations of its inner layers are single bits.",
            "",
            "```python",
            "import xnorpp",
            "",
            f'model = xnorpp.load("{card["name"]}.xnor")',
            'print(model.classify("photo.jpg", top=3))',
            "```",
            "",
            "## Card",
            "",
            "```text",
            render_card(card),
            "```",
            "",
            "## Licence",
            "",
            f"The weights are under the {card['licence']['weights']} licence. {card['licence']['data']}.",
            "",
        ]
    )
