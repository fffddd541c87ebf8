"""Writes first_steps.ipynb: the notebook as plain text, so that changes can be read."""

from pathlib import Path

import nbformat

CELLS = [
    "# First steps\nEight clients hold handwritten digits, in four groups that hold\n"
    "different ones. Nobody tells the server.",
    'import fedclade\n\nsettings = dict(data="digits", split="label-groups:4", clients=8)\n'
    'settings |= dict(rounds=4, workers=1, model="mlp")\n'
    'shared = fedclade.run(**settings, method="fedavg")\nshared',
    "One model for all serves nobody well. FedClust looks for groups and trains a model for each:",
    'clustered = fedclade.run(**settings, method="fedclust")\nclustered.clusters',
    "Every client's accuracy, by round:",
    'clustered.by_round("accuracy")',
    "The model that serves one of them, as a torch module:",
    "clustered.model_for(clustered.clients[0])",
]


def notebook() -> nbformat.NotebookNode:
    make = nbformat.v4
    cells = [
        make.new_markdown_cell(text) if place % 2 == 0 else make.new_code_cell(text) for place, text in enumerate(CELLS)
    ]
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    return make.new_notebook(cells=cells)


if __name__ == "__main__":
    nbformat.write(notebook(), Path(__file__).with_name("first_steps.ipynb"))
