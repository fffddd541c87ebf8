"""Drug reviews: what patients wrote about a drug, and the 1 to 10 stars they gave. The owner of a review is the drug.

The medical condition and the text become N numbers: their words and pairs of words, hashed (`hash-N`: nothing is
learned, so nothing can leak), or the N most frequent words of the training reviews, weighted by TF-IDF (`tfidf-N`). A
row has length 1 (0 if empty).

Drugs with no review to train or none to test on are left out: they could not be clients.
"""

import html
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.sources.source import LocalCopy, Source

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_FORM = "hash-512"
CHUNK = 5_000  # reviews turned to numbers at a time, so that memory holds the result and little else


def drug_reviews(copy: LocalCopy, form: str) -> Dataset:
    """Drugs.com reviews as float32 features, with the stars as classes 0 .. 9."""
    import pandas as pd

    tables = {}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            tables[name] = _table(copy, path, stream)
    train, test = (tables[name] for name in copy.source.files)
    owners = _drugs_to_keep(train, test)
    if not owners:
        raise copy.damaged(copy.folder, f"no drug has reviews in both {' and '.join(copy.source.files)}")
    train, test = (table[table["drugName"].isin(owners)] for table in (train, test))
    rows = pd.concat([train, test], ignore_index=True)
    with copy.reading(copy.folder / copy.source.files[0]):
        features = _features(rows["condition"] + "\n" + rows["review"], len(train), form or DEFAULT_FORM)
    return Dataset(
        f"{copy.source.name}:{form}" if form else copy.source.name,
        features,
        rows["rating"].to_numpy(np.int64) - 1,
        len(train),
        tuple(str(stars) for stars in range(1, 11)),
        owner=pd.Categorical(rows["drugName"], categories=owners).codes.astype(np.int64),
        owners=tuple(owners),
    )


def _table(copy: LocalCopy, path: Path, stream: IO[bytes]) -> "pd.DataFrame":
    """Drug, condition, review and rating of one file, each of them checked."""
    import pandas as pd

    columns = {"drugName": "str", "condition": "str", "review": "str", "rating": "float64"}
    # All columns are read, though four are kept: pandas lets lines with too many fields pass under `usecols`.
    table = pd.read_csv(stream, sep="\t", dtype=columns, keep_default_na=False)[list(columns)]
    bad = ~table["rating"].isin(range(1, 11)).to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise copy.damaged(path, f"the rating of review {row + 1} is {table['rating'].iloc[row]}, not 1 to 10")
    return table


def _drugs_to_keep(train: "pd.DataFrame", test: "pd.DataFrame") -> list[str]:
    return sorted(set(train["drugName"]) & set(test["drugName"]))


def _features(reviews: "pd.Series[str]", n_train: int, form: str) -> np.ndarray:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

    kind, width = form.split("-")[0], int(form.split("-")[1])
    shared: dict[str, Any] = {"preprocessor": _plain_text, "dtype": np.float32}
    if kind == "hash":
        vectorizer = HashingVectorizer(n_features=width, ngram_range=(1, 2), **shared)
    else:
        vectorizer = TfidfVectorizer(max_features=width, **shared).fit(reviews[:n_train])
    x = np.zeros((len(reviews), width), np.float32)  # a vocabulary smaller than N leaves its last columns zero
    for start in range(0, len(reviews), CHUNK):
        rows = vectorizer.transform(reviews[start : start + CHUNK])
        x[start : start + CHUNK, : rows.shape[1]] = rows.toarray()
    return x


def _plain_text(review: str) -> str:
    return html.unescape(review).lower()  # the site's &#039; and the like


SOURCES = (
    Source(
        name="drug-reviews",
        description="215,063 reviews of drugs, 1 to 10 stars, condition and text as 512 features; a client is a drug",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/462/drug+review+dataset+drugs+com",
        read=drug_reviews,
        files=("drugsComTrain_raw.tsv", "drugsComTest_raw.tsv"),
        addresses=("https://archive.ics.uci.edu/static/public/462/",),
        archive="drug+review+dataset+drugs+com.zip",
        forms=("hash-N", "tfidf-N"),
    ),
)
