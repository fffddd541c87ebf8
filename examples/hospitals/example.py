"""Hospitals with tables full of gaps: how long will a patient stay? Two kinds of hospitals, and nobody knows which."""

from pathlib import Path

import numpy as np
import pandas as pd

import fedclade

HERE = Path(__file__).parent


def write_tables(folder: Path, n_hospitals: int = 6) -> None:
    """Invented patients. In half of the hospitals age matters, in the others severity; some values are missing."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n_hospitals):
        age, severity = random.uniform(18, 95, 120), random.integers(1, 6, 120)
        ward = random.choice(["surgery", "medicine"], 120)
        weight = (0.12, 0.4) if number % 2 else (0.01, 3.0)
        days = 2 + weight[0] * age + weight[1] * severity + 2 * (ward == "surgery") + random.normal(0, 1, 120)
        table = pd.DataFrame({"patient": range(120), "age": age.round(), "severity": severity, "ward": ward})
        table.loc[random.random(120) < 0.1, "age"] = np.nan
        table.assign(days=days.round(1)).to_csv(folder / f"hospital-{number}.csv", index=False)


def main(out: Path) -> fedclade.Result:
    write_tables(out / "tables")
    result = fedclade.run(
        {"name": f"folder:{out / 'tables'}", "label": "days", "ignore": ["patient"], "missing": "median"},
        task="regression",
        method={"name": "fedclust", "n_clusters": 2},
        rounds=10,
        baselines=True,
        training={"optimizer": "adam", "learning_rate": 0.005, "clip": 5.0, "local_epochs": 5},
        out=out / "run",
    )
    print(result)
    print(result.verdict)
    new = pd.DataFrame({"age": [80, None], "severity": [2, 5], "ward": ["surgery", "medicine"]})
    print(fedclade.predict(result.path, "hospital-1", new))
    return result


if __name__ == "__main__":
    main(Path("example-hospitals"))
