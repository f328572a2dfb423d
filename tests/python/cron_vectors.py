"""Random cron expressions with what croniter makes of them.

  cron_vectors.py SEED COUNT

One line each: expression, start (Unix seconds), and the next three times or `refused`, with tabs.

Left out is `*` beside other items of a list, which croniter sometimes takes. A list of days with one
that some months lack (`*/15`, `30,l`) is counted out day by day from what croniter has read: croniter
itself jumps over days at the beginning of March, and over the end of shorter months.
"""
import calendar
import datetime
import itertools
import random
import sys

from croniter import croniter

EPOCH = datetime.datetime(1970, 1, 1)
MONTHS = 'jan feb mar apr may jun jul aug sep oct nov dec'.split()
DAYS = 'sun mon tue wed thu fri sat'.split()
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (0, 59)]
INTERESTING = [
    (2026, 1, 1, 0, 0, 0), (2096, 2, 28, 23, 59, 59), (2096, 3, 1, 0, 0, 0), (2099, 12, 31, 23, 59, 59),
    (2100, 2, 28, 12, 0, 0), (2000, 2, 28, 23, 59, 59), (2024, 2, 29, 0, 0, 0), (2023, 2, 28, 23, 59, 30),
    (2399, 12, 31, 23, 59, 59), (1999, 12, 31, 23, 59, 59), (2028, 2, 1, 0, 0, 0),
]


def value(rng, field, least=None):
    low, high = RANGES[field]
    n = rng.randint(low if least is None or rng.random() < 0.05 else least, high)
    if rng.random() < 0.01:
        n = rng.choice([low - 1, high + 1, 0, 60, 99, 1000]) if low else rng.choice([high + 1, 100])
    text = str(n)
    if field == 3 and 1 <= n <= 12 and rng.random() < 0.4:
        text = MONTHS[n - 1]
    if field == 4 and 0 <= n <= 6 and rng.random() < 0.4:
        text = DAYS[n]
    if rng.random() < 0.2:
        text = text.upper()
    if rng.random() < 0.05 and text.isdigit():
        text = '0' + text
    return text


def span(rng, field):
    low = value(rng, field)
    return low + '-' + value(rng, field, int(low) if low.isdigit() and int(low) <= RANGES[field][1] else None)


def item(rng, field):
    kind = rng.random()
    if field == 2 and kind < 0.1:
        return rng.choice(['l', 'L', '%d-l' % rng.randint(1, 31)])
    if field == 4 and kind < 0.15:
        text = span(rng, field) if rng.random() < 0.3 else value(rng, field)
        return text + '#%d' % rng.randint(0 if rng.random() < 0.1 else 1, 5)
    text = span(rng, field) if kind < 0.45 else value(rng, field)
    if kind > 0.35 and rng.random() < 0.35:
        text += '/%d' % (rng.randint(1, RANGES[field][1] + 2) if rng.random() < 0.97 else 0)
    return text


def field_text(rng, field, wild):
    kind = rng.random()
    if kind < wild:
        return '*'
    if kind < wild + 0.1:
        return '*/%d' % rng.randint(1, RANGES[field][1] + 3)
    if field == 4 and kind < wild + 0.12:
        return '*#%d' % rng.randint(1, 5)
    return ','.join(item(rng, field) for _ in range(rng.choice([1, 1, 1, 1, 2, 3])))


def expression(rng):
    fields = [field_text(rng, 0, 0.2), field_text(rng, 1, 0.3), field_text(rng, 2, 0.45),
              field_text(rng, 3, 0.6), field_text(rng, 4, 0.45)]
    if rng.random() < 0.25:
        fields.append(field_text(rng, 5, 0.2))
    if rng.random() < 0.01:
        fields = rng.choice([fields[:4], fields + ['*', '*'], fields[:4] + ['?'], ['@daily']])
    return rng.choice([' ', ' ', ' ', '  ']).join(fields)


def start(rng):
    if rng.random() < 0.3:
        return datetime.datetime(*rng.choice(INTERESTING)) + datetime.timedelta(seconds=rng.randint(-2, 2))
    year, month = rng.randint(1990, 2150), rng.randint(1, 12)
    day = rng.randint(1, calendar.monthrange(year, month)[1])
    return datetime.datetime(year, month, day, rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59))


def seconds(moment):
    return int((moment - EPOCH).total_seconds())


def ragged(times):
    days = times.expanded[2]
    return len(days) > 1 and any(day == 'l' or day > 28 for day in days)


def counted_out(times, begin):
    """The times after begin, found by looking at every day."""
    minutes, hours, days, months, weekdays = times.expanded[:5]
    every = [range(60) if minutes == ['*'] else minutes, range(24) if hours == ['*'] else hours]
    seconds_field = times.expanded[5] if len(times.expanded) > 5 else [0]
    every.append(range(60) if seconds_field == ['*'] else seconds_field)
    nth = times.nth_weekday_of_month

    def kinds(date):
        last = calendar.monthrange(date.year, date.month)[1]
        by_day = days == ['*'] or date.day in days or ('l' in days and date.day == last)
        weekday = date.isoweekday() % 7
        if nth:
            by_weekday = (date.day + 6) // 7 in nth.get(weekday, set()) | nth.get('*', set())
        else:
            by_weekday = weekdays == ['*'] or weekday in weekdays
        return by_day, by_weekday

    def fits(date):
        by_day, by_weekday = kinds(date)
        if days != ['*'] and weekdays != ['*']:
            return by_weekday if nth else by_day or by_weekday
        return by_day and by_weekday

    def dates(length):
        date = begin.date()
        for _ in range(length):
            if months == ['*'] or date.month in months:
                yield date
            date += datetime.timedelta(days=1)

    # What croniter follows by itself must come within some years, else it gives up.
    if not any(kinds(date)[0] and (kinds(date)[1] or (weekdays != ['*'] and not nth)) for date in dates(366 * 41)):
        return
    for date in dates(366 * 50):
        if fits(date):
            for hour in every[1]:
                for minute in every[0]:
                    for second in every[2]:
                        moment = datetime.datetime(date.year, date.month, date.day, hour, minute, second)
                        if moment > begin:
                            yield moment


def three_times(text, begin):
    times = croniter(text, begin)
    if not ragged(times):
        return [times.get_next(datetime.datetime) for _ in range(3)]
    found = list(itertools.islice(counted_out(times, begin), 3))
    if len(found) < 3:
        raise ValueError('never')
    return found


def main(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        text, begin = expression(rng), start(rng)
        try:
            found = [str(seconds(moment)) for moment in three_times(text, begin)]
        except Exception:
            found = ['refused']
        print('\t'.join([text, str(seconds(begin))] + found))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
