"""The notebooks in docs/notebooks: run anew, and as pages. ``python docs/tutorial.py`` writes their outputs into them."""

import json
import os
import re
import tempfile
from base64 import b64decode, b64encode
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
QUIET = "ignore:IProgress not found"  # tqdm's, where transformers is installed, which torchmetrics then imports
FILE = "*This page is the notebook [{name}]({name}), which can be downloaded and run.*"


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def executed(folder: Path) -> dict[Path, dict[str, Any]]:
    """Each notebook as JSON after all its cells have run in the folder; what a cell raises is raised.

    One process runs them all, because its imports cost as much as the rest; names are forgotten between two notebooks.
    """
    import nbformat
    from nbclient import NotebookClient

    opened = {path: nbformat.read(path, as_version=4) for path in notebooks()}
    forget = [nbformat.v4.new_code_cell("%reset -f") for _ in opened]
    cells = [cell for one, reset in zip(opened.values(), forget) for cell in (*one.cells, reset)]
    where = {"metadata": {"path": str(folder)}}
    whole = nbformat.v4.new_notebook(cells=cells)
    patience = {"timeout": 300, "startup_timeout": 300, "iopub_timeout": 120}  # seconds, on a busy machine
    client = NotebookClient(whole, kernel_name="python3", record_timing=False, resources=where, **patience)
    client.execute(env=os.environ | {"PYTHONWARNINGS": QUIET})
    return {path: cleaned(json.loads(nbformat.writes(one))) for path, one in opened.items()}


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Without what is the machine's, and its cells numbered from 1."""
    notebook["metadata"] = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        cell["execution_count"] = number
        cell["outputs"] = merged(cell["outputs"])
        for output in cell["outputs"]:
            if "execution_count" in output:
                output["execution_count"] = number
    return notebook


def merged(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Small pictures, what is printed in one piece, and none of the empty ones with which a progress bar ends.

    >>> printed = {"output_type": "stream", "name": "stdout"}
    >>> empty = {"output_type": "display_data", "data": {"text/plain": []}}
    >>> merged([printed | {"text": ["a"]}, empty, printed | {"text": ["b"]}])
    [{'output_type': 'stream', 'name': 'stdout', 'text': ['a', 'b']}]
    """
    kept: list[dict[str, Any]] = []
    for one in outputs:
        data = one.get("data", {})
        if data.get("text/plain") == []:
            continue
        if "image/png" in data:
            data["image/png"] = smaller(data["image/png"])
        if kept and one["output_type"] == "stream" == kept[-1]["output_type"] and one["name"] == kept[-1]["name"]:
            kept[-1]["text"] += one["text"]
        else:
            kept.append(one)
    return kept


def smaller(picture: str) -> str:
    """A PNG in base64 with 64 colours, which lines and text do not need more of: a quarter of the size."""
    from PIL import Image

    made = BytesIO()
    with Image.open(BytesIO(b64decode(picture))) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(made, "png", optimize=True)
    return b64encode(made.getvalue()).decode()


def tutorial_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook as it is committed, and its pictures by name."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = b64decode(data["image/png"])
                parts.append(f"![Figure {len(pictures)}]({name})")
            elif "text/html" in data:
                parts.append(re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL))
            else:
                text = "".join(output.get("text") or data["text/plain"]).rstrip()
                parts.append(f'<pre class="output">{escape(text)}</pre>')
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, FILE.format(name=path.name), rest, *parts[1:]]), pictures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for path, found in executed(Path(folder)).items():
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
