"""What goes wrong because of what a person gave us: one line that says what is wrong and what to do."""


class FedcladeError(Exception):
    """An error for people. The command line prints its one line and exits with code 2."""


def listed(names: object, limit: int = 20) -> str:
    """`a, b, c` of any iterable of names, shortened so that an error stays one line."""
    words = [str(name) for name in names]  # type: ignore[attr-defined]
    more = f", ... ({len(words) - limit} more)" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def unknown(kind: str, name: str, known: object) -> FedcladeError:
    """The error for a name that is not among the known ones, with the nearest of them as a suggestion."""
    import difflib

    names = sorted(str(word) for word in known)  # type: ignore[attr-defined]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FedcladeError(f"unknown {kind} {name!r}: {hint}choose one of {listed(names, 40)}")
