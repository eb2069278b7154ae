"""One page about all experiments: OUT/report.md, and the same as OUT/index.html, with plots.

    python scripts/report.py METRICS OUT --pretraining RUNS

METRICS has the results of experiment.py and, in its folder `probe`, of probe.py; RUNS is the output
of `spacy elmo pretrain`, or a folder with several. What is missing is left out. The order follows
Peters et al. (2018).
"""

from __future__ import annotations

import argparse
import html
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Optional

import results
from results import BASELINE, FULL, Comparison, Run, Spread
from wasabi import msg

from spacy_elmo.cli.util import exit_on_error
from spacy_elmo.files import atomic_file
from spacy_elmo.plots import INK, PAPER, draw_curves, draw_mixes

TITLE = "What ELMo brings"
# The AG News study: two encoders, three mixes.
ENCODERS = ("words", "char")
MIXES = ("scalar", "frozen", "learned")
PACKAGES = ("spacy-elmo", "spacy", "thinc", "torch", "numpy")
RUN_EXPERIMENTS = "`python scripts/experiment.py TASK --system baseline ...`"

NO_BREAK = "\N{NO-BREAK SPACE}"
CSS = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; --rule: #888;
  --shade: #999; --faint: #eee; --link: #0a58ca; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #d8dde3; --paper: #16181c; --line: #3a3e44; --rule: #777; --shade: #000;
    --faint: #222; --link: #7ab7ff; }
}
body { max-width: 60rem; margin: 0 auto; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
p { max-width: 46rem; }
h1, h2, h3 { line-height: 1.2; margin: 2rem 0 0.7rem; }
h1 { margin-top: 0.5rem; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: 0.3rem; }
a { color: var(--link); }
svg { display: block; width: 46rem; max-width: 100%; height: auto; margin: 1rem 0; }
/* A shadow at the edge says that there is more; paper moves along, and covers it at the end. */
.table { overflow-x: auto; margin: 0.8rem 0;
  background:
    linear-gradient(to left, var(--paper) 1.5rem, transparent 3rem) right / 3rem 100% local,
    linear-gradient(to left, var(--shade), var(--faint) 0.4rem, transparent 0.8rem)
      right / 0.8rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
/* A last column of text, not of numbers, wraps. */
td:last-child:not([style]) { white-space: normal; min-width: 15rem; }
th { border-bottom: 2px solid var(--rule); text-align: left; vertical-align: bottom; }
td:first-child, th:first-child { padding-left: 0; position: sticky; left: 0;
  background: var(--paper); }
@media (max-width: 40rem) {
  table { font-size: 0.8rem; line-height: 1.35; }
  th, td { padding: 0.3rem; }
  th { white-space: normal; }
}
code { font-size: 0.9em; overflow-wrap: anywhere; }
""".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("metrics", type=Path, help="the folder of results")
    parser.add_argument("out", type=Path, help="the folder to write the page to")
    parser.add_argument(
        "--pretraining", type=Path, nargs="+", default=[], metavar="RUNS", help="folders of runs"
    )
    args = parser.parse_args()
    with exit_on_error():
        write_report(args.metrics, args.out, args.pretraining)
        msg.good(f"Report: {args.out / 'index.html'} and {args.out / 'report.md'}")


def write_report(metrics: Path, out: Path, pretraining: Sequence[Path] = ()) -> None:
    """Write the page and its plots.

    RAISES (ValueError): If a file is broken or a library is missing.
    """
    try:
        import markdown_it  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f'{error}: pip install "spacy-elmo[report]"') from error
    if not metrics.is_dir():
        raise ValueError(f"no folder {metrics}: make one with {RUN_EXPERIMENTS}")
    report = Report(
        out,
        results.read_runs(metrics),
        results.read_probes(metrics),
        [log for folder in pretraining for log in results.read_logs(folder)],
    )
    markdown = "\n\n".join(report.parts()) + "\n"
    for name, text in (("report.md", markdown), ("index.html", to_html(markdown, out))):
        with atomic_file(out / name) as temporary:
            temporary.write_text(text, encoding="utf8")


@dataclass
class Report:
    """Each method yields the paragraphs of a section, and draws its plots.

    out (Path): Where the plots go.
    runs (list): All runs.
    probes (list): What probe.py wrote.
    pretraining (list): The name and the evaluations of each run.
    """

    out: Path
    runs: list[Run]
    probes: list[dict[str, Any]]
    pretraining: list[tuple[str, list[dict[str, Any]]]]

    @cached_property
    def tasks(self) -> dict[str, list[Run]]:
        return results.by(lambda run: run.task, self.runs)

    @cached_property
    def looks(self) -> dict[str, Any]:
        import plots

        return plots.looks(results.system_order(run.system for run in self.runs))

    def parts(self) -> Iterator[str]:
        sections = {
            "Scores": self.scores,
            "Less training data": self.sizes,
            "Layers that each task uses": self.mixes,
            "AG News: encoders and mixes": self.study,
            "Pretraining": self.learning_curves,
            "What each layer knows": self.layers,
            "What did not help, or not clearly": self.not_better,
            "Versions": self.versions,
        }
        yield f"# {TITLE}"
        yield from self.about()
        yield from self.summary()
        yield "\n".join(f"- [{title}](#{anchor(title)})" for title in sections)
        for title, section in sections.items():
            yield f"## {title}"
            yield from section()

    def about(self) -> Iterator[str]:
        yield (
            "Scores are percentages on test data: mean ± sample standard deviation over seeds. "
            f"Differences and error reductions are against `{BASELINE}`, the same pipeline without "
            "ELMo, and are taken over the seeds that both have. Minutes are of the clock, and "
            "tell also what else the machine did."
        )
        facts = [f"{count(len(self.runs), 'run')} of {count(len(self.tasks), 'task')}"]
        for what in ("weights", "hardware"):
            values = sorted({getattr(run, what) for run in self.runs} - {None})
            if values:
                facts.append(f"{what}: {', '.join(map(escape, values))}")
        if self.runs:
            yield "; ".join(facts) + "."

    def summary(self) -> Iterator[str]:
        """A row per task, of the most training data that both systems have seen."""
        rows = []
        for task, runs in self.tasks.items():
            main = results.main_score(runs)
            by_size = results.by(lambda run: run.size, runs)
            for size in reversed(results.sizes(runs)):
                grouped = results.by(lambda run: run.system, by_size[size])
                baseline = grouped.pop(BASELINE, [])
                names = results.system_order(grouped)
                name = "elmo" if "elmo" in names else next(iter(names), "")
                compared = results.compare(grouped.get(name, []), baseline, main)
                if compared is not None:
                    scores = [percent(mean_score(x, main)) for x in (baseline, grouped[name])]
                    data = describe_size(by_size[size][0])
                    label = results.MAIN_SCORES.get(main, main)
                    rows.append([task, *scores, difference(compared), label, data, name])
                    break
        if rows:
            header = ["Task", "Without ELMo", "With ELMo", "Difference", "Score (%)"]
            yield table([*header, "Training data", "System"], rows)

    def versions(self) -> Iterator[str]:
        yield (
            "Installed when this page was made. experiment.py makes results of other versions of "
            "spaCy and spacy-elmo again."
        )
        rows = [["Python", platform.python_version()], *([x, version(x)] for x in PACKAGES)]
        yield table(["Package", "Version"], rows, n_left=2)

    def scores(self) -> Iterator[str]:
        if not self.runs:
            yield missing("results", RUN_EXPERIMENTS)
        for task, runs in self.tasks.items():
            yield f"### {escape(task)}"
            full = results.by(lambda run: run.system, (run for run in runs if run.size == FULL))
            if not full:
                yield missing("runs with all training data", f"{RUN_EXPERIMENTS} with size `full`")
                continue
            main = results.main_score(runs)
            systems = results.system_order(full)
            header = [
                "System",
                f"{main} (%)",
                "Seeds",
                "Difference",
                "Error reduction",
                "Minutes",
                "Steps",
            ]
            rows = [self._score_row(name, full, main) for name in systems]
            yield table(header, rows)
            others = sorted({score for run in runs for score in run.scores} - {main})
            if others:
                yield "Other scores (%):"
                yield table(
                    ["System", *others],
                    [
                        [name, *(percent(mean_score(full[name], score)) for score in others)]
                        for name in systems
                    ],
                )

    def _score_row(self, name: str, full: dict[str, list[Run]], score: str) -> list[str]:
        runs = full[name]
        seconds = results.spread(run.seconds for run in runs)
        steps = results.spread(run.steps for run in runs)
        compared = None
        if name != BASELINE and BASELINE in full:
            compared = results.compare(runs, full[BASELINE], score)
        return [
            name,
            percent(mean_score(runs, score)),
            str(len(runs)),
            "" if compared is None else difference(compared),
            "" if compared is None else reduction(compared),
            "" if seconds is None else f"{seconds.mean / 60:,.1f}",
            "" if steps is None else f"{steps.mean:,.0f}",
        ]

    def sizes(self) -> Iterator[str]:
        import plots

        drawn = False
        for number, (task, runs) in enumerate(self.tasks.items()):
            # All data alone is among the scores above.
            by_system = results.by(lambda run: run.system, runs)
            shown = {name for name in by_system if {r.size for r in by_system[name]} != {FULL}}
            runs = [run for run in runs if run.system in shown]
            if not runs:
                continue
            drawn = True
            main = results.main_score(runs)
            sizes = results.by(lambda run: run.size, runs)
            systems = results.system_order(run.system for run in runs)
            header, rows = ["System"], {name: [name] for name in systems}
            curves = {name: [] for name in systems}
            for size in results.sizes(runs):
                # A percentage of docs is another number of sentences with each seed.
                n_train = round(sum(run.n_train for run in sizes[size]) / len(sizes[size]))
                header.append(f"{describe_size(sizes[size][0])} ({n_train:,})")
                for name in systems:
                    value = mean_score([r for r in sizes[size] if r.system == name], main)
                    rows[name].append(percent(value))
                    if value is not None:
                        curves[name].append((n_train, value))
            file = f"sizes-{number}.svg"
            plots.draw_sizes(self.out / file, "", main, curves, self.looks)
            yield f"### {escape(task)}"
            yield figure(file, f"{task}: {main} against training examples; numbers are below")
            yield table(header, list(rows.values()))
        if not drawn:
            yield missing(
                "runs with part of the training data",
                "`python scripts/experiment.py TASK --sizes full p10 ...`",
            )

    def mixes(self) -> Iterator[str]:
        rows = results.mix_rows(run for run in self.runs if run.size == FULL)
        if not rows:
            yield missing(
                "layer weights of runs with all training data",
                "`python scripts/experiment.py TASK --system elmo ...`",
            )
            return
        labels = [
            f"{row.task} ({row.place})" + ("" if row.system == "elmo" else f"\n{row.system}")
            for row in rows
        ]
        weights = [[weight.mean for weight in row.weights] for row in rows]
        draw_mixes([*zip(labels, weights)], self.out / "mixes.svg")
        yield (
            "Layer 0 is the token encoder. With all training data, mean over seeds. For a learned "
            "mix, these are the layers' shares in the norm of the weights that read them."
        )
        yield figure("mixes.svg", "Heat map of each task's layer weights; numbers are below")
        n_layers = max(len(row.weights) for row in rows)
        layers = [f"Layer {i}" for i in range(n_layers)]
        yield table(
            ["Task", "System", "Mix", *layers, "γ"],
            [
                [row.task, row.system, row.place]
                + [plain(w) for w in row.weights]
                + [""] * (n_layers - len(row.weights))
                + [plain(row.gamma)]
                for row in rows
            ],
            n_left=3,
        )

    def study(self) -> Iterator[str]:
        systems = {f"{encoder}-{mix}" for encoder in ENCODERS for mix in MIXES}
        has_rows = False
        for task, runs in self.tasks.items():
            main = results.main_score(runs)
            rows = []
            for size in results.sizes(run for run in runs if run.system in systems):
                of_size = [run for run in runs if run.size == size]
                grouped = results.by(lambda run: run.system, of_size)
                for encoder in ENCODERS:
                    names = [*(f"{encoder}-{mix}" for mix in MIXES), BASELINE]
                    scores = [percent(mean_score(grouped.get(name, []), main)) for name in names]
                    rows.append([encoder, describe_size(of_size[0]), *scores])
            if rows:
                has_rows = True
                yield f"{escape(task)}, {main} (%), for three mixes of each encoder's layers:"
                header = ["Encoder", "Training data", *map(str.title, MIXES), "Without ELMo"]
                yield table(header, rows, n_left=2)
        if not has_rows:
            yield missing(
                f"results of its systems (`{'`, `'.join(sorted(systems))}`)",
                "`python scripts/experiment.py agnews --system words-scalar --mix scalar ...`",
            )

    def learning_curves(self) -> Iterator[str]:
        if not self.pretraining:
            yield missing("pretraining runs", "`report.py --pretraining RUNS`")
            return
        yield (
            "Perplexity on held-out text, of the language models in both directions. Unigram: of "
            "the word frequencies alone."
        )
        rows = []
        for number, (name, history) in enumerate(self.pretraining):
            file = f"pretraining-{number}.svg"
            draw_curves(history, self.out / file, name)
            yield figure(file, f"{name}: perplexity against words read; the best is below")
            best = min(history, key=lambda record: record["average"])
            values = [best[key] for key in ("average", "forward", "backward", "unigram")]
            rows.append(
                [
                    name,
                    f"{best['words'] / 1e6:,.1f}",
                    f"{best['seconds'] / 3600:,.1f}",
                    *(f"{value:,.2f}" for value in values),
                ]
            )
        names = ["Average", "Forward", "Backward", "Unigram"]
        yield "At the best evaluation:"
        yield table(["Run", "Million words", "Hours", *names], rows)

    def layers(self) -> Iterator[str]:
        if not self.probes:
            command = "`python scripts/probe.py PIPELINE TRAIN.spacy TEST.spacy OUT.json`"
            yield missing("probes", f"{command}, with OUT.json in METRICS/probe")
            return
        import plots

        yield (
            "Accuracy (%) of a linear classifier on each layer's frozen activations; all: on all "
            "layers side by side. Untrained: the same network before pretraining. Most frequent: "
            "each word's most frequent tag in the training data, without a network."
        )
        for kind in sorted({probe["probe"] for probe in self.probes}):
            probes = [probe for probe in self.probes if probe["probe"] == kind]
            file = f"probe-{kind}.svg"
            plots.draw_probes(self.out / file, "", probes)
            yield f"### {escape(kind)}"
            yield figure(file, f"Accuracy of {kind} by layer; numbers are below")
            columns: dict[str, dict[Any, float]] = {}
            for probe in probes:
                trained = {row["layer"]: row["accuracy"] for row in probe["layers"]}
                random = {row["layer"]: row["accuracy"] for row in probe["untrained"]}
                columns[probe["name"]] = {**trained, "most frequent": probe["most_frequent"]}
                columns[f"{probe['name']}, untrained"] = random
            yield layer_table(columns)
        senses = {p["name"]: p["senses"] for p in self.probes if "senses" in p}
        if senses:
            yield "### Word senses"
            yield "F1 (%) of the nearest mean vector of a sense, by layer."
            yield layer_table(
                {
                    name: {
                        **{row["layer"]: row["f1"] for row in sense["layers"]},
                        "first sense": sense["first_sense"],
                    }
                    for name, sense in senses.items()
                }
            )

    def not_better(self) -> Iterator[str]:
        comparisons = [*self._comparisons()]
        if not comparisons:
            yield missing("comparisons", RUN_EXPERIMENTS)
        for is_main, what in ((True, "a main score"), (False, "another score")):
            compared = [(where, c) for main, where, c in comparisons if main == is_main]
            weak = [(where, c) for where, c in compared if not c.is_clear]
            if compared:
                yield (
                    f"Of {count(len(compared), 'comparison')} of {what} with `{BASELINE}`, "
                    f"{len(weak)} did not come out better with every one of several seeds"
                    + (":" if weak else ".")
                )
            if weak:
                # One row for all scores of a system, many of which are equal.
                rows: dict[tuple[str, ...], list[str]] = {}
                for (*system, score), c in weak:
                    rows.setdefault(tuple(system), []).append(
                        f"{score} {with_seeds(c)}".replace(" ", NO_BREAK)
                    )
                yield table(
                    ["Task", "System", "Training data", "Difference (seeds better)"],
                    [[*system, "; ".join(scores)] for system, scores in rows.items()],
                    n_left=4,
                )
        layers = [*self._weak_layers()]
        if layers:
            yield "Layers that know no more than the untrained network or than the word's tag (%):"
            yield table(["Probe", "Of", "Layer", "Accuracy", "Untrained", "Most frequent"], layers)

    def _comparisons(self) -> Iterator[tuple[bool, list[str], Comparison]]:
        """All with the baseline: whether it is the main score, what it is of, and how it ends."""
        for task, of_task in self.tasks.items():
            main = results.main_score(of_task)
            for size in results.sizes(of_task):
                of_size = [run for run in of_task if run.size == size]
                grouped = results.by(lambda run: run.system, of_size)
                baseline = grouped.pop(BASELINE, [])
                for name in results.system_order(grouped):
                    for score in sorted({score for run in grouped[name] for score in run.scores}):
                        compared = results.compare(grouped[name], baseline, score)
                        if compared is not None:
                            where = [task, name, describe_size(of_size[0]), score]
                            yield score == main, where, compared

    def _weak_layers(self) -> Iterator[list[str]]:
        for probe in self.probes:
            random = {row["layer"]: row["accuracy"] for row in probe["untrained"]}
            for row in probe["layers"]:
                values = (row["accuracy"], random[row["layer"]], probe["most_frequent"])
                if values[0] <= max(values[1:]):
                    shown = [f"{100 * value:.2f}" for value in values]
                    yield [probe["name"], probe["probe"], str(row["layer"]), *shown]


def mean_score(runs: Sequence[Run], score: str) -> Optional[Spread]:
    return results.spread(run.scores.get(score) for run in runs)


def describe_size(run: Run) -> str:
    if run.size == FULL:
        return "all"
    if run.per_class is not None:
        return f"{run.per_class:,} per class"
    percentage = run.size.removeprefix("p")
    return f"{percentage}%" if percentage != run.size and percentage.isdigit() else run.size


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def percent(value: Optional[Spread], sign: str = "") -> str:
    """RETURNS (str): For example "93.12 ± 0.21"; no spread for a single seed."""
    if value is None:
        return ""
    text = f"{100 * value.mean:{sign}.2f}".replace("-", "−")
    return text if value.sd is None else f"{text} ± {100 * value.sd:.2f}"


def difference(compared: Comparison) -> str:
    unpaired = " (no seed in common)" if compared.difference.n == 0 else ""
    return percent(compared.difference, "+") + unpaired


def with_seeds(compared: Comparison) -> str:
    n = compared.difference.n
    return difference(compared) + (f" ({compared.n_better} of {n})" if n else "")


def reduction(compared: Comparison) -> str:
    if compared.error_reduction is None:
        return ""
    return f"{100 * compared.error_reduction:.2f}%".replace("-", "−")


def plain(value: Optional[Spread]) -> str:
    if value is None:
        return ""
    return f"{value.mean:.3f}" if value.sd is None else f"{value.mean:.3f} ± {value.sd:.3f}"


def missing(what: str, command: str) -> str:
    return f"There are no {what}; {command} makes some."


def escape(text: str) -> str:
    """Keep Markdown from reading anything into a name."""
    for character in "\\`*|[<":
        text = text.replace(character, f"\\{character}")
    return text


def figure(file: str, alt: str) -> str:
    return f"![{escape(alt)}]({file})"


def layer_table(columns: dict[str, dict[Any, float]]) -> str:
    """RETURNS (str): A row per layer, and what else there is below; percentages."""
    names = dict.fromkeys(name for values in columns.values() for name in values)
    layers = sorted(name for name in names if isinstance(name, int))
    rows = [
        [str(name)]
        + ["" if v.get(name) is None else f"{100 * v[name]:.2f}" for v in columns.values()]
        for name in [*layers, *(name for name in names if not isinstance(name, int))]
    ]
    return table(["Layer", *columns], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], n_left: int = 1) -> str:
    """RETURNS (str): A Markdown table; columns after the first `n_left` go to the right."""
    rule = ["---" if i < n_left else "---:" for i in range(len(header))]
    lines = [[*map(escape, header)], rule, *([*map(escape, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def anchor(title: str) -> str:
    """RETURNS (str): What a heading is linked by, as on GitHub."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def inline_svg(path: Path, alt: str) -> str:
    """RETURNS (str): A plot as a part of a page, in the colours of its text and background. IDs are
    of the page: those of several plots must differ."""
    text = path.read_text(encoding="utf8")
    start, svg = re.split(r"(?=<svg)", text)[1].split(">", 1)
    [box] = re.findall(r'viewBox="[^"]*"', start)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "none")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{path.stem}-", svg).replace("xlink:", "")
    return f'<svg role="img" aria-label="{html.escape(alt)}" {box}>{svg}'


def to_html(markdown: str, folder: Path) -> str:
    """RETURNS (str): A whole page, with the plots of the folder in it."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    # A wide table moves inside its box; the page does not.
    parser.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")

    def heading(renderer: Any, tokens: Any, i: int, *_: Any) -> str:
        tag, title = tokens[i].tag, tokens[i + 1].content
        return f'<h2 id="{anchor(title)}">' if tag == "h2" else f"<{tag}>"

    def image(renderer: Any, tokens: Any, i: int, *_: Any) -> str:
        return inline_svg(folder / tokens[i].attrs["src"], tokens[i].content)

    parser.add_render_rule("heading_open", heading)
    parser.add_render_rule("image", image)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(TITLE)}</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>\n"
        f"{parser.render(markdown)}</body>\n</html>\n"
    )


if __name__ == "__main__":
    main()
