"""What a web shop writes to Kafka in six weeks: profiles, orders, device readings, page views.

Made up, the same for the same seed, and plausible, so that whoever looks into the golden directory
finds something to read.
"""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Final

from tests.oracle.broker_clients import Headers, Message

PROFILES: Final = "user-profiles"
ORDERS: Final = "orders-by-id"
DEVICES: Final = "device-state"
CLICKS: Final = "clickstream"

FIRST: Final = datetime(2026, 10, 5, 6, tzinfo=UTC)
SPAN: Final = timedelta(days=45)

_FIRST_NAMES: Final = (
    "Amara", "Anna", "Bilal", "Chloe", "Daniel", "Elif", "Fatima", "Giulia", "Hugo", "Ines",
    "Jakub", "Kenji", "Lena", "Mateo", "Nadia", "Oskar", "Priya", "Rosa", "Samir", "Tomás", "Zoë",
)  # fmt: skip
_LAST_NAMES: Final = (
    "Almeida", "Baker", "Costa", "Demir", "Eriksen", "Fischer", "García", "Haddad", "Jansen",
    "Kowalski", "Lindqvist", "Moreau", "Okafor", "Papadakis", "Quispe", "Rossi", "Tanaka", "Zhang",
)  # fmt: skip
_CITIES: Final = (
    ("Lisbon", "PT"), ("Kraków", "PL"), ("Lyon", "FR"), ("Osaka", "JP"), ("Lagos", "NG"),
    ("Malmö", "SE"), ("Izmir", "TR"), ("Leeds", "GB"), ("Cusco", "PE"), ("Graz", "AT"),
)  # fmt: skip
_PRODUCTS: Final = (
    ("kettle-12", 3490), ("lamp-oak", 5900), ("mug-blue", 1250), ("desk-140", 24900),
    ("chair-felt", 8990), ("rug-wool", 12900), ("clock-brass", 4450), ("shelf-3", 6990),
)  # fmt: skip
_STATES: Final = ("placed", "paid", "packed", "shipped", "delivered")
_PAGES: Final = ("/", "/search", "/cart", "/checkout", "/account", "/help/returns")
_USERS: Final = 400
_DEVICES: Final = 150
_SESSIONS: Final = 700
_DELETED_SHARE: Final = 0.05
_ARCHIVED_SHARE: Final = 0.3


def profiles(count: int, seed: int) -> Iterator[Message]:
    """Yield versions of user profiles; deleted accounts are tombstones, some people come back."""
    rng = random.Random(seed)
    users = [f"user-{number}" for number in rng.sample(range(10_000, 100_000), _USERS)]
    known: dict[str, dict[str, object]] = {}
    for user, at in zip(_often(rng, users, count), _times(rng, count), strict=True):
        if user in known and rng.random() < _DELETED_SHARE:
            del known[user]
            yield Message(topic=PROFILES, key=user.encode(), value=None, timestamp_ms=_ms(at))
            continue
        profile = known.setdefault(user, _new_profile(rng, user, at))
        _change_profile(rng, profile, at)
        yield Message(topic=PROFILES, key=user.encode(), value=_json(profile), timestamp_ms=_ms(at))


def orders(count: int, seed: int) -> Iterator[Message]:
    """Yield states of orders, each with a trace's id; archived orders end in a tombstone."""
    rng = random.Random(seed)
    number, open_orders = 0, []
    for at in _times(rng, count):
        if not open_orders or rng.random() < 1 / len(_STATES):
            number += 1
            open_orders.append({"id": f"order-2026-{number:06}", "state": -1, "lines": []})
        order = rng.choice(open_orders)
        order["state"] += 1
        if order["state"] == 0:
            order["lines"] = [
                {"sku": sku, "quantity": rng.randint(1, 3), "price_cents": cents}
                for sku, cents in rng.sample(_PRODUCTS, rng.randint(1, 3))
            ]
        is_over = order["state"] >= len(_STATES)
        yield Message(
            topic=ORDERS,
            key=order["id"].encode(),
            value=None if is_over else _json(_order(order, at)),
            timestamp_ms=_ms(at),
            headers=_order_headers(rng),
        )
        if is_over or (order["state"] == len(_STATES) - 1 and rng.random() > _ARCHIVED_SHARE):
            open_orders.remove(order)


def device_states(count: int, seed: int) -> Iterator[Message]:
    """Yield readings of thermostats; the broker stamps them."""
    rng = random.Random(seed)
    devices = [f"thermostat-{rng.getrandbits(32):08x}" for _ in range(_DEVICES)]
    for device in _often(rng, devices, count):
        reading = {
            "device": device,
            "celsius": round(rng.gauss(20.5, 1.8), 1),
            "humidity": rng.randint(28, 71),
            "battery": round(rng.uniform(2.6, 3.3), 2),
            "mode": rng.choice(["auto", "eco", "boost", "off"]),
        }
        is_removed = rng.random() < _DELETED_SHARE / 5
        value = None if is_removed else _json(reading)
        yield Message(topic=DEVICES, key=device.encode(), value=value)


def clicks(count: int, seed: int) -> Iterator[Message]:
    """Yield page views, some of them of visitors without a session."""
    rng = random.Random(seed)
    sessions = [f"{rng.getrandbits(64):016x}" for _ in range(_SESSIONS)]
    for session, at in zip(_often(rng, sessions, count), _times(rng, count), strict=True):
        sku, _ = rng.choice(_PRODUCTS)
        view = {
            "at": at.isoformat(timespec="milliseconds"),
            "session": session,
            "page": rng.choice([*_PAGES, f"/product/{sku}"]),
            "referrer": rng.choice(["", "search", "newsletter", "partner"]),
            "ms_on_page": rng.randint(200, 90_000),
        }
        key = session.encode() if rng.random() > _DELETED_SHARE else None
        agent: Headers = (("user-agent", rng.choice([b"web", b"ios", b"android"])),)
        yield Message(topic=CLICKS, key=key, value=_json(view), timestamp_ms=_ms(at), headers=agent)


def _often(rng: random.Random, names: Sequence[str], count: int) -> list[str]:
    """Choose names, a few of them very often."""
    weights = list(accumulate(1 / (rank + 8) ** 0.8 for rank in range(len(names))))
    return rng.choices(names, cum_weights=weights, k=count)


def _times(rng: random.Random, count: int) -> list[datetime]:
    return sorted(FIRST + rng.random() * SPAN for _ in range(count))


def _ms(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _new_profile(rng: random.Random, user: str, at: datetime) -> dict[str, object]:
    first, last = rng.choice(_FIRST_NAMES), rng.choice(_LAST_NAMES)
    city, country = rng.choice(_CITIES)
    return {
        "user_id": user,
        "version": 0,
        "name": f"{first} {last}",
        "email": f"{user}@mail.example",
        "city": city,
        "country": country,
        "plan": "free",
        "newsletter": rng.random() < 0.4,
        "registered_at": at.isoformat(timespec="seconds"),
        "updated_at": "",
    }


def _change_profile(rng: random.Random, profile: dict[str, object], at: datetime) -> None:
    profile["version"] = int(str(profile["version"])) + 1
    profile["updated_at"] = at.isoformat(timespec="seconds")
    what = rng.choice(["city", "plan", "newsletter", "visit"])
    if what == "city":
        profile["city"], profile["country"] = rng.choice(_CITIES)
    elif what == "plan":
        profile["plan"] = rng.choice(["free", "plus", "family"])
    elif what == "newsletter":
        profile["newsletter"] = not profile["newsletter"]


def _order(order: dict[str, object], at: datetime) -> dict[str, object]:
    lines = order["lines"]
    return {
        "order_id": order["id"],
        "state": _STATES[order["state"]],
        "lines": lines,
        "total_cents": sum(line["quantity"] * line["price_cents"] for line in lines),
        "currency": "EUR",
        "at": at.isoformat(timespec="milliseconds"),
    }


def _order_headers(rng: random.Random) -> Headers:
    trace = f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01"
    headers: Headers = (("traceparent", trace.encode()), ("content-type", b"application/json"))
    return headers if rng.random() < 0.9 else (*headers, ("retried", None))
