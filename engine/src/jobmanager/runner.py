"""Runs jobs for emq-jobmanager, one after the other, in a process of its own.

Requests come over the socket that is standard input at the start, and results go back over it:
four bytes of length (big-endian), one byte of kind, the body. The job itself gets /dev/null as
standard input, and the job manager's standard output and standard error.

In: C settings (once), J a job. Out: U up, W a warning, V a result, E a failure.
"""
import importlib
import json
import os
import sys
import traceback

# A traceback or message longer than this is cut.
TEXT_MAX = 64 * 1024


class ResultTooLarge(Exception):
    """The result does not fit into a message."""


class Channel(object):
    """The framed socket to the job manager."""

    def __init__(self):
        # Not inherited by what the job starts.
        self.fd = os.dup(0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        self.pending = b''

    def fill(self, wanted):
        """Reads until `wanted` bytes are there; false at the end of the input."""
        if len(self.pending) >= wanted:
            return True
        parts, have = [self.pending], len(self.pending)
        while have < wanted:
            part = os.read(self.fd, max(65536, min(wanted - have, 1 << 20)))
            if not part:
                return False
            parts.append(part)
            have += len(part)
        self.pending = b''.join(parts)
        return True

    def receive(self):
        """The next kind and body, or None at the end of the input."""
        if not self.fill(5):
            return None
        end = 5 + int.from_bytes(self.pending[:4], 'big')
        kind = self.pending[4:5]
        if not self.fill(end):
            return None
        body = self.pending[5:end]
        self.pending = self.pending[end:]
        return kind, body

    def send(self, kind, body):
        """Sends one frame."""
        data = memoryview(len(body).to_bytes(4, 'big') + kind + body)
        while data:
            data = data[os.write(self.fd, data):]


def text_of(error):
    """What an exception says, whatever its author made of it."""
    try:
        return str(error)[:TEXT_MAX]
    except BaseException:  # pylint: disable=broad-except
        return '(the exception has no text)'


def trace_of(error):
    """The end of the traceback."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        return ''.join(lines)[-TEXT_MAX:]
    except BaseException:  # pylint: disable=broad-except
        return ''


def resolve(path, name, class_args=(), class_kwargs=None):
    """The callable `name` of a module, or of a new object of `module:Class`."""
    module, _, cls = path.partition(':')
    owner = importlib.import_module(module)
    if cls:
        owner = getattr(owner, cls)(*(class_args or ()), **(class_kwargs or {}))
    return getattr(owner, name)


def named(dotted):
    """The callable behind a setting such as `package.module.function`."""
    path, dot, name = dotted.rpartition('.')
    if not dot:
        raise ImportError('%r does not have the form module.function' % dotted)
    return resolve(path, name)


class Runner(object):
    """Settings and the loop."""

    def __init__(self, channel, settings):
        self.channel = channel
        self.settings = settings
        self.result_max = settings['result_max']
        self.encode = json.JSONEncoder(allow_nan=False).encode
        self.decode = json.loads
        self.pid = os.getpid()
        self.hooks = {}

    def warn(self, what, error):
        """Has the job manager log something."""
        text = '%s: %s: %s' % (what, type(error).__name__, text_of(error))
        self.channel.send(b'W', text.encode('utf-8', 'replace'))

    def setup(self):
        """What a new process is prepared with; a failure is only told."""
        function, path = self.settings['subprocess_setup_func'], self.settings['setup_path']
        try:
            if function:
                named(function)()
            elif path and self.settings['setup_callable']:
                resolve(path.partition(':')[0], self.settings['setup_callable'])()
        except (Exception, SystemExit) as error:  # pylint: disable=broad-except
            self.warn('setup of a worker process failed', error)

    def hook(self, setting):
        """The function around each job, imported at its first use; a failure is the job's."""
        name = self.settings[setting]
        if not name:
            return None
        if setting not in self.hooks:
            self.hooks[setting] = named(name)
        return self.hooks[setting]

    def call(self, body):
        """Runs one job and gives its result."""
        job = self.decode(body.decode('utf-8'))
        call = job[1]
        before, after = self.hook('job_entry_func'), self.hook('job_exit_func')
        if before is not None:
            before()
        try:
            function = resolve(call['path'], call['callable'], call.get('class_args'),
                               call.get('class_kwargs'))
            return function(*(call.get('args') or ()), **(call.get('kwargs') or {}))
        finally:
            if after is not None:
                try:
                    after()
                except (Exception, SystemExit) as error:  # pylint: disable=broad-except
                    self.warn('job_exit_func failed', error)

    def run(self, body):
        """One job to the frame that tells its end."""
        try:
            result = self.encode({'value': self.call(body)}).encode('ascii')
            if len(result) > self.result_max:
                raise ResultTooLarge('the result has %d bytes as JSON, at most %d can be sent'
                                     % (len(result), self.result_max))
            return b'V', result
        except BaseException as error:  # pylint: disable=broad-except
            text = text_of(error)
            told = {'value': text, 'error': {'type': type(error).__name__, 'message': text,
                                             'traceback': trace_of(error)}}
            return b'E', json.dumps(told).encode('ascii')

    def loop(self):
        """Jobs until the job manager closes the socket."""
        while True:
            frame = self.channel.receive()
            if frame is None:
                return
            kind, body = self.run(frame[1])
            if os.getpid() != self.pid:
                # A child that the job forked came back here: the parent gives the answer.
                os._exit(0)  # pylint: disable=protected-access
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:  # pylint: disable=broad-except
                    pass
            self.channel.send(kind, body)


def main():
    """Reads the settings, prepares the process, runs jobs."""
    sys.argv[:] = ['emq-jobmanager']
    channel = Channel()
    frame = channel.receive()
    if frame is None:
        return
    runner = Runner(channel, json.loads(frame[1].decode('utf-8')))
    runner.setup()
    channel.send(b'U', b'')
    runner.loop()


main()
