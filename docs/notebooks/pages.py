"""Hooks of mkdocs: each notebook becomes a page, with the outputs that are stored in it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown.

    Args:
        notebook: The content of an .ipynb file.
        name: The name of that file, for the link to it.
    """
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        shell = source.startswith("!")
        text = "\n".join(line.replace("!", "$ ", 1) for line in source.splitlines()) if shell else source
        parts.append(f"```{'console' if shell else 'python'}\n{text}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    link = f'This page is a notebook: <a href="../{name}" download>download {name}</a> and run it.'
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        source = f"data:image/png;base64,{data['image/png'].strip()}"
        return f'<img class="output" alt="What the cell draws" src="{source}">'
    text = "".join(output.get("text") or data.get("text/plain", "")).rstrip()
    return f'<pre class="output"><code>{html.escape(text)}</code></pre>'


def on_files(files: Files, config: Any) -> Files:
    """mkdocs calls it with the files of the site."""
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        text = page(json.loads(Path(file.abs_src_path).read_text(encoding="utf-8")), Path(file.src_uri).name)
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages on the site, and to the files elsewhere."""
    return markdown.replace(".ipynb)", ".md)")
