"""Random messages of SCHEDULEs with the hash that the original scheduler makes of them.

  identity_vectors.py SEED COUNT

One line each: message and hash, with a tab. Messages are JSON on one line, spelled in many ways.
"""
import json
import random
import sys

from eventmq.scheduler import Scheduler

CHARACTERS = ('abz09 _-.:/"\\\'\t\n\r\b\f\x00\x1f\x7f\x80\xe9\u0130\u2028\u2603\ud7ff\ue000\uffff'
              '\U00010000\U0001f600\U0010ffff\ud800\udbff\udc00\udfff')
KEYS = ['args', 'callable', 'class_args', 'class_kwargs', 'kwargs', 'path']


def text(rng):
    return ''.join(rng.choice(CHARACTERS) for _ in range(rng.choice([0, 1, 2, 5, 12])))


def number(rng):
    kind = rng.randint(0, 7)
    if kind == 0:
        return rng.choice([0, -1, 2**31, 2**63, -2**63 - 1, 10**40, -10**300])
    if kind == 1:
        return rng.choice([0.0, -0.0, 1e16, 9999999999999998.0, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308,
                           float('nan'), float('inf'), float('-inf'), 0.1, 1e22, 123456789.125])
    if kind == 2:
        return rng.random() * 10 ** rng.randint(-320, 308)
    if kind == 3:
        return rng.uniform(-1e6, 1e6)
    return rng.randint(-1000, 1000)


def value(rng, depth):
    kind = rng.randint(0, 9)
    if depth < 4 and kind == 0:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if depth < 4 and kind == 1:
        return {text(rng): value(rng, depth + 1) for _ in range(rng.randint(0, 5))}
    if kind <= 4:
        return text(rng)
    if kind <= 8:
        return number(rng)
    return rng.choice([None, True, False])


def raw_number(rng):
    """Numbers as Python itself would not spell them."""
    return rng.choice(['1E5', '1e+5', '-0', '-0.0', '1.50', '0.10e1', '1e400', '-1e400', '100e-2', '1e-400',
                       '12345678901234567890123', '0.1000000000000000055511151231257827', '0e0', '2.5E-7'])


def spelled(rng, call):
    items = list(call.items())
    rng.shuffle(items)
    if rng.random() < 0.1:
        items.append(('args', value(rng, 1)))
    if rng.random() < 0.1:
        items.append(('unknown', value(rng, 1)))
    parts = []
    ascii_only = rng.random() < 0.5
    separators = rng.choice([(', ', ': '), (',', ':'), (' ,  ', ' : ')])
    for key, item in items:
        body = json.dumps(item, ensure_ascii=ascii_only, separators=separators)
        try:
            body.encode()
        except UnicodeEncodeError:
            body = json.dumps(item, separators=separators)
        if rng.random() < 0.15:
            body = '[%s, %s]' % (raw_number(rng), body)
        parts.append('%s%s%s' % (json.dumps(key), separators[1], body))
    return '["run"%s{%s}]' % (separators[0], separators[0].join(parts))


def main(seed, count):
    rng = random.Random(seed)
    out = sys.stdout.buffer
    for _ in range(count):
        call = {
            'args': [value(rng, 0) for _ in range(rng.randint(0, 3))],
            'callable': text(rng) if rng.random() < 0.3 else 'add',
            'class_args': [value(rng, 1) for _ in range(rng.randint(0, 2))],
            'class_kwargs': {text(rng): value(rng, 1) for _ in range(rng.randint(0, 2))},
            'kwargs': {text(rng): value(rng, 1) for _ in range(rng.randint(0, 4))},
            'path': text(rng) if rng.random() < 0.3 else 'jobs_x',
        }
        message = spelled(rng, call)
        digest = Scheduler.schedule_hash(['queue', '', '1', message, ''])
        # A tab in a JSON text is always escaped, but 0x7f and the like are not line ends for Rust.
        out.write(('%s\t%s\n' % (message, digest)).encode())


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
