"""A subscriber made with pyzmq.

  subscriber.py ADDRESS TOPIC COUNT    prints COUNT messages as "TOPIC TEXT" and ends
"""
import sys

import zmq


def main(address, topic, count):
    socket = zmq.Context().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
    socket.connect(address)
    for _ in range(int(count)):
        name, text = socket.recv_multipart()
        print(name.decode(), text.decode(), flush=True)
    socket.close(linger=0)


if __name__ == '__main__':
    main(*sys.argv[1:])
