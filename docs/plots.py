"""Write the plots plot-*.svg: bars of tables in benchmarks/RESULTS.md.

python docs/plots.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "RESULTS.md"
# Name of the plot: section of the page, number of the table in it, columns of the label, columns
# of bars, and how the labels of rows begin whose bars stand out.
PLOTS = {
    "frontier": ("Beside other vectors", 0, "model", "CPU s|UPOS|CoNLL|AG 100|STS-B", "en_elmo"),
    "precision": ("Embedding", 0, "shape|precision", "cold|warm|latency ms|min cosine", ""),
    "threads": (
        *("With compiled kernels and threads for directions", 1),
        *("shape|precision|through", "1 thread|2 threads|n/1", ""),
    ),
    "bulk": ("Bulk", 0, "engine|workers", "start|sentences/s|to 1 worker|RSS MB", ""),
    "training": ("Training", 0, "variant", "steps/s, later|time/static|peak MB", ""),
}
WIDTH, HEIGHT, FONT = 400, 22, 11.5
STYLE = "svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#d8dde3}}"


def table(section: str, number: int) -> list[dict[str, str]]:
    """RETURNS (list): The rows of a table below a heading, without those that go on a row."""
    text = RESULTS.read_text(encoding="utf8").split(f"# {section}\n")[1].split("\n#")[0]
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in blocks[number].splitlines()
    )
    return [dict(zip(header, row)) for row in rows if row[0]]


def bars(section: str, number: int, labels: str, columns: str, emphasis: str) -> str:
    """RETURNS (str): A drawing with a line for each row and a bar for each column."""
    names, rows = columns.split("|"), table(section, number)
    texts = [" ".join(row[name] for name in labels.split("|")) for row in rows]
    left = 6.0 * max(map(len, texts)) + 4
    step = (WIDTH - left) / len(names)
    height = HEIGHT * (len(rows) + 1) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="{FONT}" fill="currentColor">',
        f"<style>{STYLE}</style>",
    ]
    for j, name in enumerate(names):
        x = left + j * step
        parts.append(f'<text x="{x:.1f}" y="15" font-size="10.5">{escape(name)}</text>')
        numbers = [row[name].replace(",", "").strip("*") for row in rows]
        most = max(float(number) for number in numbers if number)
        for i, (row, value) in enumerate(zip(rows, numbers), 1):
            y = HEIGHT * i
            colour = "#d9822b" if emphasis and row[labels].startswith(emphasis) else "#3b82c4"
            if value:
                share = float(value) / most * (step - 8)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 3}" width="{share:.1f}" height="{HEIGHT - 6}" '
                    f'fill="{colour}" fill-opacity=".4"/>'
                )
            parts.append(f'<text x="{x + 2:.1f}" y="{y + 15}">{escape(row[name])}</text>')
    for i, text in enumerate(texts, 1):
        parts.append(f'<text y="{HEIGHT * i + 15}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def pages() -> dict[str, str]:
    """RETURNS (dict): The plots by the names of their files."""
    return {f"plot-{name}.svg": bars(*plot) for name, plot in PLOTS.items()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf8")
