"""What happens to a federation while it trains: clients join, leave, or see their data change.

Who is there and who holds which rows follows from the events and the round alone, so a resumed run needs no memory of
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedclade.errors import FedcladeError

Who = Annotated[int, Field(ge=0)] | tuple[str, ...]  # names, or how many


class Event(BaseModel):
    """Before a round begins, some clients join, leave or drift."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: Annotated[int, Field(ge=1)]
    join: Who = 0  # a number: that many of the last clients, who are absent until then
    leave: Who = 0  # a number: that many of the first clients present
    drift: Who = 0  # these pass their rows on in a circle; a number: that many, spread over all clients present


@dataclass(frozen=True)
class Calendar:
    """All events of a run, with names in place of numbers."""

    clients: tuple[str, ...]
    events: tuple[Event, ...] = ()

    @classmethod
    def of(cls, clients: Sequence[str], events: Iterable[Event]) -> "Calendar":
        """Number the events' clients off: joiners from the end, leavers from the start, drifters from everywhere."""
        ordered = sorted(events, key=lambda event: event.round)
        absent: list[str] = []
        for event in ordered:
            count = event.join if isinstance(event.join, int) else 0
            absent += [name for name in reversed(clients) if name not in absent][:count]
        named, waiting = [], list(absent)
        for event in ordered:
            count = event.join if isinstance(event.join, int) else 0
            joining, waiting = waiting[:count], waiting[count:]
            named.append(event.model_copy(update={"join": (*_names(event.join), *joining)}))
        calendar = cls(tuple(clients), tuple(named))
        for place, event in enumerate(named):
            here = [name for name in calendar.present(event.round - 1) if name not in _names(event.join)]
            leave = tuple(here[: event.leave]) if isinstance(event.leave, int) else event.leave
            here = [name for name in here if name not in leave]
            drift = event.drift if not isinstance(event.drift, int) else _spread(here, event.drift)
            named[place] = event.model_copy(update={"leave": leave, "drift": drift})
            calendar = cls(tuple(clients), tuple(named))
        return calendar._checked()

    def joined_by(self, names: Sequence[str], round: int) -> "Calendar":
        """With clients that nobody announced: on a real grid they come when they come."""
        return Calendar((*self.clients, *names), (*self.events, Event(round=round, join=tuple(names))))

    def _checked(self) -> "Calendar":
        for event in self.events:
            for name in (*_names(event.join), *_names(event.leave), *_names(event.drift)):
                if name not in self.clients:
                    raise FedcladeError(
                        f"the event of round {event.round} names {name!r}, who is no client of this run"
                    )
            there = self.present(event.round - 1)
            for name in (*_names(event.leave), *_names(event.drift)):
                if name not in there:
                    raise FedcladeError(
                        f"the event of round {event.round} names {name!r}, who is not there at that time"
                    )
            if not self.present(event.round):
                raise FedcladeError(f"after the event of round {event.round} no client is left: let fewer leave")
        if not self.present(0):
            raise FedcladeError("all clients join later, so nobody is there at the start: let fewer join")
        return self

    def present(self, round: int) -> tuple[str, ...]:
        """Who takes part in a round."""
        there = set(self.clients) - {name for event in self.events for name in _names(event.join)}
        for event in self.events:
            if event.round <= round:
                there = (there | set(_names(event.join))) - set(_names(event.leave))
        return tuple(name for name in self.clients if name in there)

    def rows_of(self, round: int) -> dict[str, str]:
        """Whose rows a client holds in a round, where they are not its own."""
        holds = {name: name for name in self.clients}
        for event in self.events:
            if event.round <= round and (circle := _names(event.drift)):
                passed = [holds[name] for name in circle]
                holds |= dict(zip(circle, passed[1:] + passed[:1], strict=True))
        return {name: owner for name, owner in holds.items() if name != owner}

    def newcomers(self, round: int) -> tuple[str, ...]:
        """Who must be given a place before a round: those who join and those whose data have changed."""
        new = {name for e in self.events if e.round == round for name in (*_names(e.join), *_names(e.drift))}
        return tuple(name for name in self.present(round) if name in new)


def _names(who: Who) -> tuple[str, ...]:
    return () if isinstance(who, int) else tuple(who)


def _spread(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Evenly spaced names: neighbours are often alike, and drift between like clients would change nothing."""
    count = min(count, len(names))
    return tuple(names[k * len(names) // count] for k in range(count))


def groups_of(groups: Mapping[str, int], rows_of: Mapping[str, str]) -> dict[str, int]:
    """The hidden group of every client, given whose rows it holds."""
    return {name: groups[rows_of.get(name, name)] for name in groups}


def hidden_groups(record: Mapping[str, Any], round: int) -> Mapping[str, int] | None:
    """The hidden groups after a round of the run with this record: they change as clients' data do."""
    groups, events = record["groups"], record["settings"].get("events")
    if groups is None or not events:
        return groups
    calendar = Calendar.of(record["clients"], [Event(**event) for event in events])
    return groups_of(groups, calendar.rows_of(round))
