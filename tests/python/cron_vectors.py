"""Random cron expressions with what croniter makes of them.

  cron_vectors.py SEED COUNT

One line each: expression, start (Unix seconds), and the next three times or `refused`, with tabs.
Left out is what the scheduler treats otherwise on purpose: `*` beside other items of a list, and
`l` beside days from 29 on.
"""
import calendar
import datetime
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
    while True:
        items = [item(rng, field) for _ in range(rng.choice([1, 1, 1, 1, 2, 3]))]
        if field == 2 and any(i in 'lL' for i in items) and len(items) > 1:
            # See above. Ranges and steps may reach those days.
            if any(i not in 'lL' and not (i.isdigit() and int(i) < 29) for i in items):
                continue
        return ','.join(items)


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


def main(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        text, begin = expression(rng), start(rng)
        try:
            times = croniter(text, begin)
            found = [str(seconds(times.get_next(datetime.datetime))) for _ in range(3)]
        except Exception:
            found = ['refused']
        print('\t'.join([text, str(seconds(begin))] + found))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
