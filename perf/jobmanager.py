#!/usr/bin/env python3
"""Capacity of a job manager: no-op Python jobs a second with two worker processes, emq-jobmanager
against the original's, at the same broker, in turns.

  perf/jobmanager.py BIN_DIR [ROUNDS]      BIN_DIR has emq-router and emq-jobmanager

Needs the original package (tests/setup-peers), whose Python runs this. Jobs are put into the broker
before the job manager starts; the rate is that between the first and the last tenth of them. Prints
JSON with ratios; absolute numbers depend on the machine.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import zmq

CALL = json.dumps(['run', {'callable': 'nothing', 'path': 'noop_jobs', 'args': [], 'kwargs': {},
                           'class_args': [], 'class_kwargs': {}}]).encode()


def environment(**more):
    """This process's, without settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith('EVENTMQ_')}
    kept.update(more)
    return kept


def request(socket, *frames):
    """Sends one message."""
    socket.send_multipart([b'', b'eMQP/1.0'] + list(frames))


class Broker(object):
    """An emq-router on ports of its own."""

    def __init__(self, program, folder):
        any_port = 'tcp://127.0.0.1:0'
        self.process = subprocess.Popen(
            [program, '--print-addresses'], stdout=subprocess.PIPE, cwd=folder,
            stderr=open(os.path.join(folder, 'router.log'), 'w'),
            env=environment(EVENTMQ_FRONTEND_ADDR=any_port, EVENTMQ_BACKEND_ADDR=any_port,
                            EVENTMQ_ADMINISTRATIVE_ADDR=any_port))
        self.addr = {}
        while len(self.addr) < 3:
            _, name, addr = self.process.stdout.readline().decode().split()
            self.addr[name] = addr
        self.context = zmq.Context()
        self.admin = self.dealer('administrative')

    def dealer(self, name):
        """A connected DEALER."""
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.connect(self.addr[name])
        return socket

    def waiting(self):
        """Jobs that are not handed out."""
        request(self.admin, b'STATUS', b'status')
        status = json.loads(self.admin.recv_multipart()[4])
        return sum(status['waiting_messages_by_queue'].values())

    def stop(self):
        """Ends it at once: what is left does not matter."""
        self.context.destroy()
        self.process.kill()
        self.process.wait()


def rate(router, manager, jobs, folder):
    """Jobs a second of this job manager."""
    broker = Broker(router, folder)
    child = None
    try:
        client = broker.dealer('frontend')
        for n in range(jobs):
            request(client, b'REQUEST', b'job-%d' % n, b'default', b'', CALL)
        while broker.waiting() < jobs:
            time.sleep(0.02)
        child = subprocess.Popen(
            [manager], cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True,
            stderr=open(os.path.join(folder, 'manager.log'), 'w'),
            env=environment(EVENTMQ_WORKER_ADDR=broker.addr['backend'], PYTHONPATH=folder,
                            EVENTMQ_CONCURRENT_JOBS='2', EVENTMQ_MAX_JOB_COUNT='1000000000',
                            EVENTMQ_CONFIG_FILE='/dev/null'))
        first = last = None
        while last is None:
            waiting, now = broker.waiting(), time.monotonic()
            if first is None and waiting <= jobs * 0.9:
                first = waiting, now
            if waiting <= jobs * 0.1:
                last = waiting, now
            time.sleep(0.02)
        return (first[0] - last[0]) / (last[1] - first[1])
    finally:
        if child is not None:
            try:
                os.killpg(child.pid, 9)
            except ProcessLookupError:
                pass
            child.wait()
        broker.stop()


def main(folder_of_binaries, rounds='5'):
    """Measures in turns."""
    binaries = os.path.abspath(folder_of_binaries)
    router = os.path.join(binaries, 'emq-router')
    ours = os.path.join(binaries, 'emq-jobmanager')
    original = os.path.join(os.path.dirname(sys.executable), 'emq-jobmanager')
    ratios = []
    with tempfile.TemporaryDirectory(prefix='emq-perf-') as folder:
        with open(os.path.join(folder, 'noop_jobs.py'), 'w') as module:
            module.write('def nothing():\n    pass\n')
        for _ in range(int(rounds)):
            theirs = rate(router, original, 6000, folder)
            own = rate(router, ours, 60000, folder)
            ratios.append(own / theirs)
            print('round: ours %.0f/s, original %.0f/s' % (own, theirs), file=sys.stderr)
    print(json.dumps({
        'what': 'no-op Python jobs a second with 2 worker processes, emq-jobmanager to the '
                'job manager of eventmq 0.3.13, same broker (emq-router)',
        'ratio_median': round(statistics.median(ratios), 1),
        'ratio_min': round(min(ratios), 1),
        'rounds': len(ratios),
        'cores': os.cpu_count(),
    }, indent=2))


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
