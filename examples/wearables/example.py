"""People with a sensor: windows of six signals, worn in two ways. A newcomer finds its place."""

from pathlib import Path

import fedclade
from fedclade.data import federation_of
from fedclade.newcomers import place_unlabelled


def main(out: Path) -> fedclade.Result:
    people = federation_of("synthetic")
    early, late = people.names[:10], people.names[10:]
    clients = {name: rows_of(people, name) for name in early}
    result = fedclade.run(clients, method="clade", rounds=8, out=out / "run")
    print(result, result.clusters)
    placed = fedclade.place(result.path, {name: rows_of(people, name) for name in late})
    for name, one in placed.items():
        print(f"{name} joins cluster {one.cluster}: {one.metric.words} {one.metric.written(one.score)}")
    unlabelled = place_unlabelled(result.path, {name: people.x[people[name].train] for name in late})
    for name, one in unlabelled.items():
        print(f"{name}, of whom only windows are known, joins cluster {one.cluster}")
    assert {name: one.cluster for name, one in unlabelled.items()} == {
        name: one.cluster for name, one in placed.items()
    }
    return result


def rows_of(people: fedclade.Federation, name: str) -> dict[str, object]:
    """A person's windows, as anyone could give them."""
    client, classes = people[name], people.classes
    return {
        "x": people.x[client.train],
        "y": [classes[label] for label in people.y[client.train]],
        "x_test": people.x[client.test],
        "y_test": [classes[label] for label in people.y[client.test]],
    }


if __name__ == "__main__":
    main(Path("example-wearables"))
