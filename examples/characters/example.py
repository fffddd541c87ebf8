"""Next-character prediction: a text file for each client, and two languages that nobody told the server about."""

from pathlib import Path

import fedclade

SENTENCES = {
    "english": "the quick brown fox jumps over the lazy dog and runs back to the river. ",
    "german": "der schnelle braune fuchs springt ueber den faulen hund und rennt zum fluss. ",
}


def write_texts(folder: Path, n_clients: int = 6) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n_clients):
        words = list(SENTENCES.values())[number % 2].split()
        turned = [" ".join(words[(turn + number) % 7 :]) for turn in range(40)]
        (folder / f"writer-{number}.txt").write_text(" ".join(turned), encoding="utf-8")


def main(out: Path) -> fedclade.Result:
    write_texts(out / "texts")
    result = fedclade.run(
        {"name": f"folder:{out / 'texts'}", "length": 32},
        task="tokens",
        method={"name": "fedclust", "n_clusters": 2},
        rounds=6,
        training={"optimizer": "adam", "learning_rate": 0.01, "clip": 1.0},
        out=out / "run",
    )
    print(result, result.clusters)
    return result


if __name__ == "__main__":
    main(Path("example-characters"))
