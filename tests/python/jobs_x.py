"""Jobs that leave a trace: one line for each run in the file named by EMQ_TEST_TRACE."""
import os
import time


def record(word):
    # One write of a short line to a file opened for appending is never torn or mixed.
    trace = os.open(os.environ['EMQ_TEST_TRACE'], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(trace, ('%s %.3f\n' % (word, time.time())).encode())
    finally:
        os.close(trace)
    return word


def slow(word, seconds):
    time.sleep(seconds)
    return record(word)
