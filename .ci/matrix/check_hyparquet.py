"""A reader in another language: the program of docs/readers.md, run by Node.js. Needs npm."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from columns import check_columns
from values import run

VERSION = "1.31.5"
PACKAGES = (f"hyparquet@{VERSION}", "hyparquet-compressors@1.1.2")
PRINT = """
import { episodes } from "./reader.mjs";
const plain = (_, value) =>
  typeof value === "bigint" ? Number(value)
  : value instanceof Uint8Array ? { bytes: Buffer.from(value).toString("base64") }
  : ArrayBuffer.isView(value) ? Array.from(value) : value;
for await (const episode of episodes(process.argv[2])) console.log(JSON.stringify(episode, plain));
"""


def check(dataset: Path, _: Path) -> str:
    folder = Path(sys.prefix) / "node"
    if not (folder / "node_modules").exists():
        folder.mkdir(exist_ok=True)
        subprocess.run(
            ["npm", "install", "--prefix", str(folder), *PACKAGES], check=True, stdout=subprocess.DEVNULL
        )
    page = (Path(__file__).resolve().parents[2] / "docs" / "readers.md").read_text()
    (folder / "reader.mjs").write_text(re.findall(r"^```js\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0])
    (folder / "print.mjs").write_text(PRINT)
    done = subprocess.run(
        ["node", str(folder / "print.mjs"), str(dataset)], check=True, capture_output=True, text=True
    )
    ends = [json.loads(line, object_hook=_bytes) for line in done.stdout.splitlines()]
    steps = [step for episode in ends for step in episode.pop("steps")]
    tables = {"data": steps, "episodes": ends}
    return check_columns(
        dataset,
        lambda table: {name: [row[name] for row in tables[table.name]] for name in tables[table.name][0]},
    )


def _bytes(item: dict[str, Any]) -> Any:
    return base64.b64decode(item["bytes"]) if item.keys() == {"bytes"} else item


run(check, hyparquet=VERSION)
