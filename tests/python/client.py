"""The original client library, driven from the command line.

  client.py ADDRESS defer PREFIX COUNT          COUNT jobs jobs_x.record('PREFIX-N')
  client.py ADDRESS schedule WORD SECONDS       jobs_x.record(WORD) every SECONDS
  client.py ADDRESS cron WORD EXPRESSION        jobs_x.record(WORD) by EXPRESSION
  client.py ADDRESS unschedule WORD             the end of it
  client.py ADDRESS publish TOPIC TEXT
"""
import sys

from eventmq.client.messages import defer_job, schedule, send_publish_request
from eventmq.sender import Sender


def main(address, command, *args):
    socket = Sender()
    socket.connect(address)
    if command == 'defer':
        prefix, count = args
        for n in range(int(count)):
            # Results are asked for and never read, as this library does.
            msgid = defer_job(socket, 'jobs_x.record', args=('%s-%d' % (prefix, n),),
                              reply_requested=n % 2 == 0)
            assert msgid, 'the client library refused its job'
    elif command == 'schedule':
        word, seconds = args
        assert schedule(socket, 'jobs_x.record', interval_secs=int(seconds), args=(word,))
    elif command == 'cron':
        word, expression = args
        assert schedule(socket, 'jobs_x.record', cron=expression, args=(word,))
    elif command == 'unschedule':
        word, = args
        assert schedule(socket, 'jobs_x.record', args=(word,), unschedule=True)
    elif command == 'publish':
        topic, text = args
        assert send_publish_request(socket, topic, text)
    else:
        sys.exit('unknown command %r' % command)
    # Waits until everything is in the hands of the kernel.
    socket.zsocket.close(linger=-1)
    socket.zcontext.term()


if __name__ == '__main__':
    main(*sys.argv[1:])
