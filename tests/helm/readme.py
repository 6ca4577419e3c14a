"""The table of values in the chart's README, from the comments `# --` of values.yaml. `--bless` writes it; otherwise it is
compared. Every value must have such a comment, or be below a value that has one."""

import json
import pathlib
import re
import sys

import yaml

CHART = pathlib.Path(__file__).resolve().parents[2] / "helm" / "croupier"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"


def comments(text):
    """Maps the path of a value to its comment and to the default to show, if one is given."""
    found, path, words, shown = {}, [], [], None
    for line in text.splitlines():
        comment = re.match(r" *# ?(.*)$", line)
        if comment and comment[1].startswith("-- "):
            words, shown = [comment[1][3:]], None
        elif comment and comment[1].startswith("@default -- "):
            shown = comment[1][12:]
        elif comment and words:
            words.append(comment[1])
        elif key := re.match(r"( *)([\w]+):", line):
            path = path[: len(key[1]) // 2] + [key[2]]
            if words:
                found[".".join(path)] = (" ".join(words), shown)
            words, shown = [], None
        else:
            words, shown = [], None
    return found


def rows(values, told, prefix=""):
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in told:
            meaning, shown = told[path]
            yield f"| `{path}` | {shown or f'`{json.dumps(value)}`'} | {meaning} |"
        elif isinstance(value, dict) and value:
            yield from rows(value, told, f"{path}.")
        else:
            sys.exit(f"values.yaml does not describe {path}; add a comment `# -- `")


def main():
    text = (CHART / "values.yaml").read_text()
    table = ["| value | default | meaning |", "|---|---|---|", *rows(yaml.safe_load(text), comments(text))]
    path = CHART / "README.md"
    page = path.read_text()
    before, rest = page.split(BEGIN)
    wanted = f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}{rest.split(END)[1]}"
    if "--bless" in sys.argv:
        path.write_text(wanted)
    elif page != wanted:
        sys.exit("the table of values in helm/croupier/README.md is out of date; scripts/helm-check --bless rewrites it")
    print(f"{len(table) - 2} values are described")


if __name__ == "__main__":
    main()
