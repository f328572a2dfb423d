"""Jobs that end in every way there is, and the functions around them."""
import ctypes
import os
import subprocess
import sys
import time

from jobs_x import record

SET_UP = []


def add(a, b):
    return a + b


def nothing():
    pass


def fail(text):
    raise ValueError(text)


def leave(code):
    os._exit(code)


def leave_by_exception(code):
    sys.exit(code)


def signal_self(number):
    os.kill(os.getpid(), number)


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def record_and_sleep(word, seconds):
    record(word)
    time.sleep(seconds)


def stuck_in_c(word):
    """In C code, which no exception reaches, with every signal blocked that can be."""
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    record(word)
    ctypes.CDLL(None).sleep(1000)


def with_child(word, seconds):
    """Leaves a child behind in its process group."""
    subprocess.Popen(['sleep', '1000'])
    record(word)
    time.sleep(seconds)
    return word


def forks():
    """Both come back from here; one of them is not the worker process."""
    os.fork()
    return 'forked'


def result_set():
    return {1, 2}


def result_nan():
    return float('nan')


def result_generator():
    return (n for n in range(3))


def result_text(count):
    return 'x' * count


def result_unicode():
    return 'é☃'


class Evil(Exception):
    def __str__(self):
        raise RuntimeError('no text')


def evil():
    raise Evil()


def deep():
    return deep()


def length(text):
    return len(text)


def chatty():
    print('a line')
    sys.stdout.write('{"value": "from the job"}\n' * 1000)
    os.write(1, b'raw\n')
    sys.stderr.write('to standard error\n')
    return 'done'


def reads_stdin():
    return sys.stdin.read()


def closes_everything():
    os.closerange(3, 1024)
    time.sleep(1000)


def writes_nonsense():
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'nonsense that is no frame')
        except OSError:
            pass
    time.sleep(1000)


def process_id():
    return os.getpid()


class Counter(object):
    def __init__(self, start, step=1):
        self.start, self.step = start, step

    def after(self, steps):
        return self.start + steps * self.step


def set_up():
    SET_UP.append(os.getpid())


def was_set_up():
    return SET_UP == [os.getpid()]


def set_up_fails():
    raise RuntimeError('the setup fails')


def before():
    record('before')


def after():
    record('after')


def before_fails():
    raise KeyError('the entry function fails')
